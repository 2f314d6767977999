"""The verdict on `no_regression`, where what nobody can compare is no pass, and intervals of a single launch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as altered

from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries, key_values_of
from pytest_ddpscale.history.prediction import references
from pytest_ddpscale.history.regression import (
    Baseline,
    gpus_by_kind,
    judge_regression,
    may_be_widened,
    missing_gpus,
    read_baseline,
    with_launch_deviation,
)
from pytest_ddpscale.history.store import forget, node_runs, reading, record_run
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import RankTransport
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, WRONG_DATA, RunOutcome, Verdict, read_judgement
from pytest_ddpscale.thresholds.cases import Case, NodeCase
from pytest_ddpscale.thresholds.model import Requirement, Source
from tests.approved import assert_approved
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of
from tests.builders.measurements import measurements_of
from tests.builders.nights import GPUS, SKU, at, conclude, judged_run, key_value, stable
from tests.builders.probes import A100
from tests.builders.rounds import columns_of
from tests.rows import rows

HEALTHY = (100.0, 100.0)
STEADY = (99.0, 100.0, 101.0, 100.0, 100.5, 99.5)
RESTLESS = (80.0, 120.0, 90.0, 110.0, 100.0, 100.0)


def judged(evidence: Evidence, baseline: Baseline | None, bound: float = 0.95) -> Verdict:
    asked = Requirement("no_regression", bound, Source(reasoning="made up"), severity="warn", provisional=True)
    return judge_regression(NodeCase(asked, "node", "t.yaml:7", A100), evidence, baseline, 0.95)


def told(verdict: Verdict) -> Iterator[str]:
    low, high = verdict.interval or (0.0, 0.0)
    values = f"{verdict.value or 0:.4f} ({low:.4f} … {high:.4f})"
    how = f"{verdict.rounds} rounds, between launches {verdict.launch_sd or 0:.4f}, {[*verdict.flags]}"
    yield f"  {verdict.outcome} by {verdict.bound_value:g}: {values}, {how}; {verdict.reason}"
    yield from (f"    note: {note}" for note in verdict.notes)
    yield from (f"    {who.kind} {who.place.name} of {who.host}, certain: {who.is_certain}" for who in verdict.culprits)


def evidence_at(folder: Path, *samples_per_s: float) -> Evidence:
    """Of one night on n1."""
    return read_evidence(judged_run(folder / "run", 9, {"n1": samples_per_s or HEALTHY}))


def past(
    evidence: Evidence, values: Sequence[float] = STEADY, but: Mapping[str, Sequence[float]] | None = None
) -> Baseline:
    """Every value of a run had these before; other ones, or none, where `but` says so of ``GPU 1``, or of an arm."""
    before: list[list[KeyValue]] = []
    for one in key_values_of(evidence):
        named = (one.place.number, one.series.arm)
        of_one = next((found for name, found in (but or {}).items() if name in named), values)
        before += [[altered(one, value=x)] for x in of_one]
    return Baseline(SKU, at(9), tuple(references(before).items()), ("n1: since then torch 2.13 before, 2.14 now",))


# What each GPU reaches tonight, and what it, or an arm, reached before, if not STEADY; None for no history.
NIGHTS: Sequence[tuple[str, tuple[float, float], Mapping[str, Sequence[float]] | None]] = (
    ("as ever", HEALTHY, {}),
    ("GPU 1 fell", (100.0, 70.0), {}),
    ("both fell", (70.0, 70.0), {}),
    ("GPU 1 was replaced, and has no past", HEALTHY, {"GPU 1": ()}),
    ("GPU 1 was replaced, which hides no other that fell", (70.0, 100.0), {"GPU 1": ()}),
    ("no GPU was measured alone before", HEALTHY, {"alone": ()}),
    ("GPU 1 kept its pace as far as anybody can tell, GPU 0 fell a little", (97.5, 100.0), {"GPU 1": RESTLESS[:5]}),
    ("a restless GPU hides no other that fell", (70.0, 80.0), {"GPU 1": RESTLESS}),
    ("too few nights", HEALTHY, {"each": STEADY[:4], "alone": (), "ddp": ()}),
    ("fell by a variable", (100.0, 90.0), {}),
    ("no history", HEALTHY, None),
    ("nothing was measured", HEALTHY, {}),
)


def test_the_outcome_of_a_night(tmp_path: Path) -> None:
    said = list[str]()
    for name, paces, but in NIGHTS:
        found = evidence_at(tmp_path / name, *paces)
        if "variable" in name:
            slowed = RankTransport(rank=0, variables={"CUDA_LAUNCH_BLOCKING": "1"})
            found = replace(found, transports={Place("n1", 0): slowed})
        if "nothing" in name:
            found = replace(found, columns=columns_of([]))
        said += [name, *told(judged(found, None if but is None else past(found, but=but)))]
    assert_approved("regression.txt", "\n".join(said) + "\n")


SLOWER, LOST = ("GPU 1 slower by 10 %", (100.0, 90.0)), ("GPU 0 gives no value", HEALTHY)
BEFORE = (
    *[("healthy", HEALTHY)] * 7, ("GPU 1 slower by 4 %", (100.0, 96.0)), ("healthy", HEALTHY), SLOWER, SLOWER, LOST,
    LOST, ("GPU 1 replaced", HEALTHY),
)  # fmt: skip
# Nights after the node was forgotten.
EACH_NIGHT = (*BEFORE, *[("GPU 0 gives no value, GPU 1 slower by 10 %", (100.0, 90.0))] * 6,
              ("GPU 0 gives no value, GPU 1 slower by 20 %", (100.0, 80.0)))  # fmt: skip


def night(folder: Path, number: int) -> tuple[RunDirectory, Evidence]:
    """A nightly check, which is never more than partial."""
    what, paces = EACH_NIGHT[number]
    noise = 0.2 * (number % 3)
    run = judged_run(folder / str(number), number, {"n1": [pace + noise for pace in paces]}, outcome="partial")
    if "replaced" in what:
        text = run.measurements_jsonl.read_text(encoding="utf-8").replace("GPU-n1-1", "GPU-new")
        run.measurements_jsonl.write_text(text, encoding="utf-8")
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


def test_each_night_is_judged_by_the_nights_before_until_the_node_is_forgotten(tmp_path: Path) -> None:
    history, first, said = tmp_path / "history.sqlite", 0, list[str]()
    for number, (what, _) in enumerate(EACH_NIGHT):
        if number == len(BEFORE):
            said.append(f"{forget(history, 'n1')} nights forgotten")
            first = number
        run, evidence = night(tmp_path, number)
        baseline = read_baseline(history, SKU, {"n1": {}}, at(number)) if number > first else None
        add(history, run, evidence)
        if number >= first + 4:
            said.append(f"night {number}, {what}; regressed: {regressed(history)[-1] or 'nothing'}")
            said += [line for bound in (0.95, 0.97) for line in told(judged(evidence, baseline, bound))]
    assert_approved("nights.txt", "\n".join(said) + "\n")


def test_the_order_of_adding_changes_nothing(tmp_path: Path) -> None:
    runs, orders = [night(tmp_path, number) for number in range(10)], (range(10), range(9, -1, -1), (9, *range(9)))
    for name, order in enumerate(orders):
        for number in order:
            add(tmp_path / f"{name}.sqlite", *runs[number])
    assert [bool(one) for one in regressed(tmp_path / "0.sqlite")] == [False] * 7 + [True, False, True]
    assert regressed(tmp_path / "0.sqlite") == regressed(tmp_path / "1.sqlite") == regressed(tmp_path / "2.sqlite")


def kinds(gpus: Sequence[str], **of: Any) -> list[KeyValueSeries]:
    return [key_value(gpu=gpu, **of).series for gpu in gpus]


FOUR = kinds("ABCD")


@rows(
    ("before", "now", "missing"),
    [
        (FOUR, kinds("ABD"), ["C on n1"]),
        (FOUR, FOUR, []),
        (FOUR, kinds("ABED"), []),  # replaced
        (FOUR + kinds("AB", subject="copy"), FOUR, []),  # no GPU was asked for it
        (kinds("ABC", world_size=3), kinds("AB"), ["C on n1"]),
        (FOUR + kinds("EF", host="n2") + kinds([""]), FOUR + kinds("E", host="n2"), ["F on n2"]),
    ],
)
def test_a_gpu_that_tells_nothing_while_others_of_its_node_do_is_missing(
    before: list[KeyValueSeries], now: list[KeyValueSeries], missing: list[str]
) -> None:
    assert missing_gpus(gpus_by_kind(before), now) == missing


WIDE, NARROW = (make_case("throughput_per_gpu", bound, GPUS) for bound in (40.0, 98.0))
HARDLY = (100.0, 100.1) * 3


def widened(evidence: Evidence, case: Case, earlier: Sequence[float], **changes: Any) -> Verdict:
    """The verdict where every value of the run had these before."""
    verdict = replace(judge(case, evidence, CONFIDENCE), **changes)
    if not may_be_widened(verdict, case):
        return verdict
    return with_launch_deviation(verdict, case, evidence, past(evidence, earlier))


def test_the_interval_of_a_launch_is_wider_and_says_by_what(tmp_path: Path) -> None:
    evidence = evidence_at(tmp_path)
    cases: Sequence[tuple[str, Case, Sequence[float], Mapping[str, Any]]] = (
        ("it is about more than this launch", WIDE, RESTLESS, {"flags": (THIS_LAUNCH_ONLY,)}),
        ("all intervals have as much", WIDE, HARDLY, {}),
        ("an imported sample has nothing yet", WIDE, HARDLY, {"rounds": 1}),
        ("another launch might miss the bound", NARROW, RESTLESS, {}),
        ("unless data are wrong", NARROW, RESTLESS, {"outcome": "failed", "flags": (WRONG_DATA,)}),
        ("too few earlier runs", NARROW, RESTLESS[:4], {}),
        ("no throughput", make_case("weak_scaling_efficiency", 0.5, GPUS), RESTLESS, {}),
    )
    said = list[str]()
    for name, case, earlier, changes in cases:
        said += [name, *told(widened(evidence, case, earlier, **changes))]
    for one_gpu in ("alone", "ddp"):  # as it was trained
        single = make_case("throughput_per_gpu", 40.0, world_size=1, one_gpu=one_gpu)
        plan = plan_of([single])
        measured = evidence_of_plan(plan, measure(plan.studies[0], FEWEST_ROUNDS))
        assert {one.series.arm for one in key_values_of(measured)} == {one_gpu}
        said += [one_gpu, *told(widened(measured, single, RESTLESS))]
    assert_approved("launch-deviation.txt", "\n".join(said) + "\n")


def test_an_interval_holds_where_launches_stray_as_they_did_before(tmp_path: Path) -> None:
    """Of the mean of all launches, which the one that is judged knows nothing of."""
    evidence, chance, held = evidence_at(tmp_path), random.Random(5), 0
    for _ in range(400):
        *earlier, this = stable(chance, 8, 0.1)
        low, high = widened(evidence, WIDE, earlier, value=this, interval=(this, this)).interval or (0.0, 0.0)
        held += low <= 100.0 <= high
    assert held >= 0.93 * 400


def test_a_gpu_of_a_rejected_run_is_not_expected_later(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    nights: Sequence[tuple[RunOutcome, str]] = [("partial", "GPU-n1-1"), ("rejected", "GPU-lent")]
    for number, (outcome, gpu) in enumerate(nights):
        run = judged_run(tmp_path / str(number), number, {"n1": HEALTHY}, outcome=outcome)
        text = run.measurements_jsonl.read_text(encoding="utf-8").replace("GPU-n1-1", gpu)
        run.measurements_jsonl.write_text(text, encoding="utf-8")
        conclude(run, outcome, at(number))
        add(history, run, read_evidence(run))
    baseline = read_baseline(history, SKU, {"n1": {}}, at(9))
    assert {gpu for _, gpus in baseline.gpus for gpu in gpus} == {"GPU-n1-0", "GPU-n1-1"}
