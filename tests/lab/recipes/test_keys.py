from cayley.lab.recipes import flatten, setting_keys, tables


def test_every_setting_of_every_recipe_has_a_key() -> None:
    keys = set(setting_keys())
    for table in tables().values():
        for entry in table.entries:
            assert set(flatten(entry.recipe())) <= keys, entry.name
