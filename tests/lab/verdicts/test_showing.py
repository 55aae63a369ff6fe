"""Verdicts as the page shows them, by made-up runs."""

import re
from pathlib import Path

from lab.verdicts.made_up import make_run, make_study

from cayley.cli import make_parser
from cayley.lab.report import JudgedClaim, summarize, write_page
from cayley.lab.report.claims import verdict_table
from cayley.lab.report.reading import MeasuredRun
from cayley.lab.verdicts import Evidence, judge_claims, missing_commands, show_verdicts

FALLING, FLAT = [0.5, 0.01, 0.001], [0.5, 0.4, 0.4]


def make_runs() -> list[MeasuredRun]:
    curves = {"atn-lstm/adding-200": FALLING, "ln-lstm/adding-200": FLAT}
    curves["lstm/adding-200-rmsprop"] = FLAT
    return [
        make_run(name, seed, [0.9 + 1e-3 * seed, *values], split="valid")
        for name, values in curves.items()
        for seed in (1, 2, 3)
    ]


def assert_commands_run(commands: list[str]) -> None:
    """Every command can be parsed as it is printed, and asks for a number of seeds."""
    assert commands
    for command in commands:
        program, *words = command.split()
        assert program == "cayley"
        assert make_parser().parse_args(words).seeds >= 3


def show(runs: list[MeasuredRun], evidence: Evidence | None = None) -> dict[str, JudgedClaim]:
    evidence = Evidence(runs) if evidence is None else evidence
    claims = show_verdicts(judge_claims(evidence), evidence, summarize(runs), {"heatmaps": b"png"})
    return {one.id: one for one in claims}


def test_a_claim_has_the_curves_that_it_was_judged_by() -> None:
    claim = show(make_runs())["atn-add-200"]
    assert (claim.basis, claim.source) == ("runs", "Pospisil 2023, Figure 3.5")
    (figure,) = claim.figures
    assert figure.title == "adding: valid MSE"
    assert {trace["row"] for trace in figure.spec["data"]["values"]} == {
        "atn-lstm/adding-200",
        "ln-lstm/adding-200",
        "lstm/adding-200-rmsprop",
    }


def test_the_commands_for_what_is_missing() -> None:
    def commands(seeds: int, curves: list[list[float]]) -> tuple[str, ...]:
        runs = [make_run("ornn/adding-200", seed, curves[seed % 2]) for seed in range(seeds)]
        runs += [make_run("ornn/adding-200-128", seed, curves[seed % 2]) for seed in range(seeds)]
        verdicts = {one.claim.id: one for one in judge_claims(Evidence(runs))}
        return missing_commands(verdicts["add-ornn-full-reflections-worse"])

    both = ("cayley train ornn/adding-200 --seeds", "cayley train ornn/adding-200-128 --seeds")
    assert commands(0, []) == tuple(f"{one} 3" for one in both)
    assert commands(3, [FALLING, FLAT]) == tuple(f"{one} 6" for one in both)
    (held, *_) = (one for one in judge_claims(Evidence([])) if one.words == "holds")
    assert missing_commands(held) == ()


def test_a_claim_has_the_picture_of_its_study() -> None:
    evidence = Evidence([], [make_study("heatmaps", 3 * [{"short_mean_share": 0.001}])])
    claim = show([], evidence)["heatmap-short"]
    assert (claim.basis, claim.outcome) == ("runs", "holds")
    (picture,) = claim.pictures
    assert (picture.study, picture.address) == ("heatmaps", "data:image/png;base64,cG5n")


def test_a_verdict_on_a_part_of_the_data_is_marked_and_has_its_picture() -> None:
    evidence = Evidence([], [make_study("cifar10-slice", 3 * [{"bnp_60_loss_share": 0.9}])])
    claims = show_verdicts(
        judge_claims(evidence), evidence, summarize([]), {"cifar10-slice": b"png"}
    )
    claim = next(one for one in claims if one.id == "bnp-cifar-train-loss")
    assert (claim.basis, claim.outcome) == ("runs", "does not hold")
    assert claim.words == "does not hold, on 1,000 of the 50,000 images of CIFAR-10"
    assert [picture.study for picture in claim.pictures] == ["cifar10-slice"]
    assert claim.words in verdict_table(claims).rows[claims.index(claim)]


def test_claims_without_runs_say_what_makes_them() -> None:
    claims = show([])
    assert {one.basis for one in claims.values()} == {"tests", "nothing"}
    assert not any(one.figures or one.pictures for one in claims.values())
    claim = claims["atn-add-200"]
    assert (claim.basis, claim.words) == ("nothing", "undecided")
    names = ("atn-lstm/adding-200", "ln-lstm/adding-200", "lstm/adding-200-rmsprop")
    assert claim.commands == tuple(f"cayley train {name} --seeds 3" for name in names)


def test_the_decided_come_first() -> None:
    ranks = [one.rank for one in show(make_runs()).values()]
    assert ranks == sorted(ranks)
    assert len(verdict_table([*show(make_runs()).values()]).rows) == 95


def test_verdicts_are_the_first_section_of_the_page(tmp_path: Path) -> None:
    runs = make_runs()
    report = summarize(runs)
    claims = [*show(runs).values()]
    figures = {section.name: [] for section in report.sections}
    page = write_page(report, figures, "2026-11-16", claims)
    first = page.partition("<main>")[2].lstrip()
    assert first.startswith('<section id="verdicts">')
    section = first.partition("</section>")[0]
    assert section.count("<tbody ") == sum(one.basis == "runs" for one in claims)
    assert all(f'id="claim-{one.id}"' in section for one in claims)
    assert "95 claims: " in section
    assert 'download="verdicts.csv"' in section
    assert_commands_run(re.findall(r"missing: <code>(.*?)</code>", section))
