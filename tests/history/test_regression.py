"""The verdict on `no_regression`, where what nobody can compare is no pass, and intervals of a single launch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.errors import HistoryError
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
from pytest_ddpscale.history.store import add_run
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import RankTransport
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, WRONG_DATA, RunOutcome, Verdict
from pytest_ddpscale.thresholds.cases import Case, NodeCase
from pytest_ddpscale.thresholds.model import Requirement, Source
from tests.approved import assert_approved
from tests.builders.json_types import as_json, read_as
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of
from tests.builders.nights import GPUS, SKU, VERSIONS, at, judged_run, key_value, stable
from tests.builders.probes import A100
from tests.rows import rows

BOUND = 0.95
STEADY = (99.0, 100.0, 101.0, 100.0, 100.5, 99.5)
RESTLESS = (80.0, 120.0, 90.0, 110.0, 100.0, 100.0)
SD = 0.14338  # of the logarithms of these


def case(bound: float = BOUND) -> NodeCase:
    source = Source(reasoning="made up for a test")
    asked = Requirement("no_regression", bound, source, severity="warn", provisional=True)
    return NodeCase(asked, "node", "t.yaml:7", A100)


def evidence_at(folder: Path, *samples_per_s: float) -> Evidence:
    """Of one night on n1."""
    return read_evidence(judged_run(folder / "run", 9, {"n1": samples_per_s or [100.0] * GPUS}))


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return evidence_at(tmp_path)


def past(
    evidence: Evidence, values: Sequence[float] = STEADY, but: Mapping[str, Sequence[float]] | None = None
) -> Baseline:
    """Every value of a run had these before; other ones, or none, where `but` says so of ``GPU 1``, or of an arm."""
    before: list[list[KeyValue]] = []
    for one in key_values_of(evidence):
        named = (one.place.number, one.series.arm)
        of_one = next((found for name, found in (but or {}).items() if name in named), values)
        before += [[altered(one, value=x)] for x in of_one]
    return Baseline(SKU, at(9), tuple(references(before).items()))


def judged(evidence: Evidence, baseline: Baseline | None) -> Verdict:
    return judge_regression(case(), evidence, baseline, 0.95)


# What each GPU reaches tonight, and what it, or an arm, reached before, if not STEADY.
NIGHTS: Sequence[tuple[str, tuple[float, float], Mapping[str, Sequence[float]]]] = (
    ("as ever", (100.0, 100.0), {}),
    ("GPU 1 fell", (100.0, 70.0), {}),
    ("both fell", (70.0, 70.0), {}),
    ("GPU 1 was replaced, and has no past", (100.0, 100.0), {"GPU 1": ()}),
    ("GPU 1 was replaced, which hides no other that fell", (70.0, 100.0), {"GPU 1": ()}),
    ("no GPU was measured alone before", (100.0, 100.0), {"alone": ()}),
    ("GPU 1 kept its pace as far as anybody can tell, GPU 0 fell a little", (97.5, 100.0), {"GPU 1": RESTLESS[:5]}),
    ("a restless GPU hides no other that fell", (70.0, 80.0), {"GPU 1": RESTLESS}),
    ("too few nights", (100.0, 100.0), {"each": STEADY[:4], "alone": (), "ddp": ()}),
    ("fell by a variable", (100.0, 90.0), {}),
)


def test_the_outcome_of_a_night(tmp_path: Path) -> None:
    def lines() -> Iterator[str]:
        for name, paces, but in NIGHTS:
            found = evidence_at(tmp_path / name, *paces)
            if "variable" in name:
                slowed = RankTransport(rank=0, variables={"CUDA_LAUNCH_BLOCKING": "1"})
                found = replace(found, transports={Place("n1", 0): slowed})
            one = judged(found, past(found, but=but))
            low, high = one.interval or (0.0, 0.0)
            assert low <= (one.value or 0.0) <= high
            yield f"{name}: {one.outcome} {one.value or 0:.3f} ({low:.3f} … {high:.3f}), {one.rounds} runs"
            yield f"  {one.reason}"
            yield from (f"  note: {note}" for note in one.notes)
            yield from (f"  {who.kind} {who.place.uuid}, certain: {who.is_certain}" for who in one.culprits)
            yield f"  flags: {', '.join(one.flags)}"

    assert_approved("regression.txt", "\n".join(lines()) + "\n")


def test_what_cannot_be_compared_is_said(tmp_path: Path, evidence: Evidence) -> None:
    verdict = judged(evidence, None)
    assert (verdict.outcome, verdict.value) == ("inconclusive", None)
    assert verdict.reason == "there is no history of these nodes (--ddp-history)"
    with pytest.raises(HistoryError, match="does not exist"):
        read_baseline(tmp_path / "history.sqlite", SKU, {"n1": {}}, at(0))
    run = judged_run(tmp_path / "empty")
    run.measurements_jsonl.write_text("", encoding="utf-8")
    verdict = judged(read_evidence(RunDirectory.open(run.path)), Baseline(SKU, at(9)))
    assert verdict.outcome == "not_measured"
    assert verdict.reason == "the run has no value to compare with earlier runs"


def test_a_baseline_is_kept_as_json(evidence: Evidence) -> None:
    kept = replace(past(evidence), changes=("n1: since then torch 2.13 before, 2.14 now",),
                   gpus=((key_value(gpu="").series, ("A", "B")),))  # fmt: skip
    data = as_json(kept)
    assert read_as(Baseline, data) == kept
    assert judged(evidence, kept).notes[-1] == kept.changes[0]
    [series, _], *_ = data["past"]
    changes: Sequence[dict[str, object]] = (
        {"past": 3}, {"past": [{}]}, {"past": [3]}, {"changes": 3}, {"gpus": {"n1": 3}}, {"past": None},
        {"past": [[series, [0, 1.0, 0.1]]]}, {"past": [[series, [5, 1.0, -0.1]]]}, {"past": [[series, [5, 1.0]]]},
    )  # fmt: skip
    for change in changes:
        with pytest.raises(ValueError):
            read_as(Baseline, data | change)


def test_a_baseline_is_read_of_earlier_runs_that_were_not_rejected(tmp_path: Path) -> None:
    """A node that broke must not become its own norm."""
    history = tmp_path / "history.sqlite"
    for night in range(13):
        broke, folder = 6 <= night < 12, tmp_path / str(night)
        pace, driver = (80.0, "570") if broke else (100.0, "580.65")
        outcome: RunOutcome = "rejected" if broke else "accepted"
        add_run(history, judged_run(folder, night, {"n1": [pace] * 2}, outcome=outcome, driver=driver).path)
    now = {"driver": "590.1", "torch": VERSIONS["torch"], "nccl": "2.28"}
    found = read_baseline(history, SKU, {"n1": now, "unknown": now}, at(12))
    assert (found.sku, found.before) == (SKU, at(12))
    assert [(one.number, round(one.mean)) for _, one in found.past] == [(6, 100)] * 4
    assert found.changes == ("n1: since then driver 580.65 before, 590.1 now",)
    assert read_baseline(history, "another-gpu", {"n1": {}}, at(12)) == Baseline("another-gpu", at(12))


def told(*gpus: str, host: str = "n1", subject: str = "matmul", at_once: int = 1) -> list[KeyValueSeries]:
    return [key_value().series._replace(host=host, gpu=gpu, subject=subject, world_size=at_once) for gpu in gpus]


FOUR = told("A", "B", "C", "D")


@rows(
    ("before", "now", "missing"),
    [
        (FOUR, told("A", "B", "D"), ["C on n1"]),
        (FOUR, FOUR, []),
        (FOUR, told("A", "B", "new", "D"), []),  # replaced
        (FOUR + told("A", "B", subject="copy"), FOUR, []),  # no GPU was asked for it
        (told("A", "B", "C", at_once=3), told("A", "B", at_once=2), ["C on n1"]),
        (FOUR + told("E", "F", host="n2") + told(""), FOUR + told("E", host="n2"), ["F on n2"]),
    ],
)
def test_a_gpu_that_tells_nothing_while_others_of_its_node_do_is_missing(
    before: list[KeyValueSeries], now: list[KeyValueSeries], missing: list[str]
) -> None:
    assert missing_gpus(gpus_by_kind(before), now) == missing


WIDE, NARROW = make_case("throughput_per_gpu", 40.0, GPUS), make_case("throughput_per_gpu", 98.0, GPUS)
HARDLY = (100.0, 100.1) * 3


def widened(evidence: Evidence, case: Case, earlier: Sequence[float], **changes: Any) -> Verdict:
    """The verdict where every value of the run had these before."""
    verdict = replace(judge(case, evidence, CONFIDENCE), **changes)
    assert may_be_widened(verdict, case)
    return with_launch_deviation(verdict, case, evidence, past(evidence, earlier))


def test_the_interval_of_a_launch_is_wider_and_says_by_what(evidence: Evidence) -> None:
    verdict = widened(evidence, WIDE, RESTLESS, flags=(THIS_LAUNCH_ONLY,))
    assert verdict.passed
    low, high = verdict.interval or (0.0, 0.0)
    for end in (low, high):
        assert abs(math.log(end / (verdict.value or 0.0))) == pytest.approx(2.5706 * SD, rel=0.01)
    assert verdict.launch_sd == pytest.approx(SD, rel=1e-3)
    assert verdict.notes == ("interval with the deviation between 6 earlier launches (14.3 %)",)
    assert verdict.flags == (), "it is about more than this launch"
    own = judge(WIDE, evidence, CONFIDENCE).interval or (0.0, 0.0)
    assert widened(evidence, WIDE, HARDLY).interval == pytest.approx(own, rel=1e-9), "all intervals have as much"
    imported = widened(evidence, WIDE, HARDLY, rounds=1).interval or (0.0, 0.0)  # has nothing yet
    assert imported[0] < own[0] < own[1] < imported[1]


def test_a_bound_that_another_launch_might_miss_is_open_unless_data_are_wrong(evidence: Evidence) -> None:
    assert judge(NARROW, evidence, CONFIDENCE).passed
    verdict = widened(evidence, NARROW, RESTLESS)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.endswith("between 6 earlier launches (14.3 %); measure again on another day")
    assert widened(evidence, NARROW, RESTLESS, outcome="failed", flags=(WRONG_DATA,)).outcome == "failed"


def test_only_throughput_with_enough_earlier_runs_is_widened(evidence: Evidence) -> None:
    assert widened(evidence, WIDE, RESTLESS[:4]) == judge(WIDE, evidence, CONFIDENCE)
    efficiency = make_case("weak_scaling_efficiency", 0.5, GPUS)
    assert not may_be_widened(judge(efficiency, evidence, CONFIDENCE), efficiency)
    for one_gpu in ("alone", "ddp"):  # as it was trained
        single = make_case("throughput_per_gpu", 40.0, world_size=1, one_gpu=one_gpu)
        plan = plan_of([single])
        measured = evidence_of_plan(plan, measure(plan.studies[0], FEWEST_ROUNDS))
        assert {one.series.arm for one in key_values_of(measured)} == {one_gpu}
        assert widened(measured, single, RESTLESS).launch_sd is not None


def test_an_interval_holds_where_launches_stray_as_they_did_before(evidence: Evidence) -> None:
    """Of the mean of all launches, which the one that is judged knows nothing of."""
    chance, held = random.Random(5), 0
    for _ in range(400):
        *earlier, this = stable(chance, 8, 0.1)
        low, high = widened(evidence, WIDE, earlier, value=this, interval=(this, this)).interval or (0.0, 0.0)
        held += low <= 100.0 <= high
    assert held >= 0.93 * 400
