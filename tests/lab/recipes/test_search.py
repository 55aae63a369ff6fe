from cayley.lab.recipes import find_recipe, matches, near_words, plain, published, tables


def test_words_do_not_run_into_each_other() -> None:
    assert "timit" not in plain("without imitation, at it, I mit")
    assert plain("Pixel-MNIST (permuted)") == "pixelmnist permuted"


def test_a_recipe_is_found_by_what_is_known_of_it() -> None:
    recipe = find_recipe("scornn/pmnist-170").recipe()
    for words in (["ScoRNN", "pmnist"], ["permuted"], ["helfrich"], ["Table 2.1"], [recipe.paper]):
        assert matches(recipe, words), words
    assert matches(recipe, ["pixel"], "Pixel MNIST")
    assert not matches(recipe, ["scornn", "timit"])
    assert not matches(recipe, ["("])


def test_claims_are_looked_into_on_demand() -> None:
    entries = (entry for table in tables().values() for entry in table.entries)
    recipe = next(recipe for entry in entries if (recipe := entry.recipe()).claims)
    words = published.claim(recipe.claims[0]).text.split()
    assert matches(recipe, words, claims=True)
    assert not matches(recipe, words)


def test_near_words_are_those_of_names() -> None:
    recipe = find_recipe("lstm/characters-350").recipe()
    assert near_words(["charcters", "xyz"], [recipe])[0] == "characters"
    assert near_words(["xyz"], [recipe]) == []
