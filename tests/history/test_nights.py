"""A node night after night: what `no_regression` says of each, and what the history takes for a baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pytest_ddpscale.history.regression import judge_regression, read_baseline
from pytest_ddpscale.history.store import forget, node_runs, reading, record_run
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import read_judgement
from tests.approved import assert_approved
from tests.builders.measurements import measurements_of
from tests.builders.nights import SKU, at, conclude, judged_run
from tests.builders.rounds import columns_of
from tests.history.test_regression import case

SLOWER = ("GPU 1 slower by 10 %", (100.0, 90.0))
LOST = ("GPU 0 gives no value", (100.0, 100.0))
BEFORE = (
    *[("healthy", (100.0, 100.0))] * 7,
    ("GPU 1 slower by 4 %", (100.0, 96.0)),
    ("healthy", (100.0, 100.0)),
    SLOWER,
    SLOWER,
    LOST,
    LOST,
    ("GPU 1 replaced", (100.0, 100.0)),
)
# Nights after the node was forgotten.
NIGHTS = (*BEFORE, *[("GPU 0 gives no value, GPU 1 slower by 10 %", (100.0, 90.0))] * 6,
          ("GPU 0 gives no value, GPU 1 slower by 20 %", (100.0, 80.0)))  # fmt: skip


def night(folder: Path, number: int) -> tuple[RunDirectory, Evidence]:
    """A nightly check, which is never more than partial."""
    what, paces = NIGHTS[number]
    noise = 0.2 * (number % 3)
    run = judged_run(folder / str(number), number, {"n1": [pace + noise for pace in paces]}, outcome="partial")
    if "replaced" in what:
        told = run.measurements_jsonl.read_text(encoding="utf-8").replace("GPU-n1-1", "GPU-new")
        run.measurements_jsonl.write_text(told, encoding="utf-8")
        conclude(run, "partial", at(number))
    evidence = read_evidence(run)
    if "no value" in what:
        kept = [one for one in measurements_of(run.read_records()) if one.device != "GPU-n1-0" or "ddp" in one.arm]
        evidence = replace(evidence, columns=columns_of(kept))
    return run, evidence


def add(history: Path, run: RunDirectory, evidence: Evidence) -> None:
    record_run(history, run, read_judgement(run.verdicts_json), evidence)


def regressed(history: Path) -> list[str]:
    """Of each night, the values that enter no baseline."""
    with reading(history) as connection:
        runs = node_runs(connection, SKU, "n1")
    return [", ".join(sorted(f"{one.series.arm} of {one.place.number}" for one in run.worse)) for run in runs]


def lines(history: Path, first: int, nights: range) -> Iterator[str]:
    """Each night judged by the ones before it, by the packaged bound and a closer one, and added."""
    for number in nights:
        run, evidence = night(history.parent, number)
        baseline = read_baseline(history, SKU, {"n1": {}}, at(number)) if number > first else None
        add(history, run, evidence)
        if number < first + 4:
            continue
        yield f"night {number}, {NIGHTS[number][0]}; regressed: {regressed(history)[-1] or 'nothing'}"
        for bound in (0.95, 0.97):
            found = judge_regression(case(bound), evidence, baseline, 0.95)
            low, high = found.interval or (0.0, 0.0)
            yield f"  {found.outcome} by {bound:g}: {found.value or 0:.4f}, {low:.4f} … {high:.4f}; {found.reason}"
        yield from (f"    {one.kind} {one.place.number} of {one.host}" for one in found.culprits)
        yield from (f"    {note}" for note in found.notes)


def test_each_night_is_judged_by_the_nights_before_until_the_node_is_forgotten(tmp_path: Path) -> None:
    history, new = tmp_path / "history.sqlite", len(BEFORE)
    said = [*lines(history, 0, range(new))]
    assert forget(history, "n1") == new
    said += ["forgotten", *lines(history, new, range(new, len(NIGHTS)))]
    assert_approved("nights.txt", "\n".join(said) + "\n")


def test_the_order_of_adding_changes_nothing(tmp_path: Path) -> None:
    runs, orders = [night(tmp_path, number) for number in range(10)], (range(10), range(9, -1, -1), (9, *range(9)))
    for name, order in enumerate(orders):
        for number in order:
            add(tmp_path / f"{name}.sqlite", *runs[number])
    assert [bool(one) for one in regressed(tmp_path / "0.sqlite")] == [False] * 7 + [True, False, True]
    assert regressed(tmp_path / "0.sqlite") == regressed(tmp_path / "1.sqlite") == regressed(tmp_path / "2.sqlite")
