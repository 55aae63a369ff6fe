from cayley.lab.recipes import published
from cayley.lab.recipes.coverage import coverage, missing
from cayley.lab.studies import STUDIES


def test_every_claim_is_covered_or_has_a_reason() -> None:
    found = coverage()
    assert [one.claim.id for one in found] == [*published.claims()]
    for one in found:
        assert bool(one.recipes or one.studies) != bool(one.reason), one.claim.id
        assert one.recipes or one.studies or one.tests or "lost" in one.reason
    by_id = {one.claim.id: one for one in found}
    six = {f"eurnn/adding-{rest}" for rest in ("200", "400", "750")}
    six |= {"eurnn/adding-200-fft", "eurnn/adding-400-fft", "eurnn/adding-750-tunable"}
    assert {*by_id["add-eurnn-variant-by-length"].recipes} == six
    assert by_id["neumann-order"].recipes
    assert by_id["neumann-order"].tests


def test_studies_are_those_that_there_are() -> None:
    assert [*published.studies()] == [*STUDIES]


def test_what_is_missing_has_a_reason() -> None:
    found = missing()
    served = {id for one in coverage() if one.recipes for id in (one.claim.id,)}
    assert len({(one.kind, one.id) for one in found}) == len(found)
    for one in found:
        assert one.reason
        assert one.kind == "result" or one.id not in served
        names = published.results() if one.kind == "result" else published.claims()
        assert names[one.id].location == one.location
