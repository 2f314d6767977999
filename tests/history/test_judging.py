"""The verdict on `no_regression`: what certainly fell fails, and what nobody can compare is no pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.history.baseline import Baseline
from pytest_ddpscale.history.judging import judge_regression
from pytest_ddpscale.history.key_values import KeyValue, key_values_of
from pytest_ddpscale.history.prediction import reference_of
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import RankTransport
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import BY_VARIABLE, Verdict
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.thresholds.model import Requirement, Source
from tests.builders.nights import GPUS, SKU, at, judged_run
from tests.builders.probes import A100

BOUND = 0.95
STEADY = (99.0, 100.0, 101.0, 100.0, 100.5, 99.5)
RESTLESS = (80.0, 120.0, 90.0, 110.0, 100.0)


def case() -> NodeCase:
    source = Source(reasoning="made up for a test")
    asked = Requirement("no_regression", BOUND, source, severity="warn", provisional=True)
    return NodeCase(asked, "node", "t.yaml:7", A100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def evidence(folder: Path, *samples_per_s: float) -> Evidence:
    """Of one night on n1."""
    return read_evidence(judged_run(folder / "run", 9, {"n1": samples_per_s or [100.0] * GPUS}))


def past(
    evidence: Evidence, values: Sequence[float] = STEADY, but: dict[KeyValue, Sequence[float]] | None = None
) -> Baseline:
    """Every value of a run had these before; other ones, or none, where `but` says so."""
    known = {one: reference_of((but or {}).get(one, values)) for one in key_values_of(evidence)}
    return Baseline(SKU, at(9), tuple((one.series, found) for one, found in known.items() if found is not None))


def of_gpu(evidence: Evidence, index: int | None) -> list[KeyValue]:
    return [one for one in key_values_of(evidence) if one.gpu_index == index]


def judged(evidence: Evidence, baseline: Baseline | None) -> Verdict:
    return judge_regression(case(), evidence, baseline, 0.95)


def test_a_node_that_reaches_what_it_did_passes(folder: Path) -> None:
    found = evidence(folder)
    verdict = judged(found, past(found))
    assert (verdict.outcome, verdict.culprits) == ("passed", ())
    assert verdict.value == pytest.approx(1.0, abs=0.01)
    assert verdict.interval is not None
    assert BOUND <= verdict.interval[0] < 1 < verdict.interval[1]
    assert verdict.rounds == len(STEADY)
    assert verdict.notes == ("compared with at least 6 earlier runs, by prediction intervals",)


def test_a_gpu_that_fell_fails_and_is_named_without_being_certain(folder: Path) -> None:
    found = evidence(folder, 100.0, 70.0)
    verdict = judged(found, past(found))
    assert verdict.outcome == "failed"
    assert verdict.value == pytest.approx(0.7, abs=0.01)
    assert verdict.interval is not None
    assert verdict.interval[1] < BOUND
    gpu = next(culprit for culprit in verdict.culprits if culprit.kind == "gpu")
    assert (gpu.host, gpu.place.index, gpu.place.uuid) == ("n1", 1, "GPU-n1-1")
    assert not any(culprit.is_certain for culprit in verdict.culprits)
    assert [culprit.place.index for culprit in verdict.culprits if culprit.kind == "gpu"] == [1]
    assert "GPU 1 on n1: throughput_per_gpu r (2 at once, batch 4) is 70.0 % of its past" in verdict.reason
    assert verdict.reason.startswith("fell below 0.95 of earlier runs: ")


def test_what_fell_by_a_variable_names_nobody(folder: Path) -> None:
    found = evidence(folder, 100.0, 90.0)
    slowed = RankTransport(rank=0, variables={"CUDA_LAUNCH_BLOCKING": "1"})
    verdict = judged(replace(found, transports={Place("n1", 0): slowed}), past(found))
    assert (verdict.outcome, verdict.culprits, verdict.flags) == ("failed", (), (BY_VARIABLE,))


def test_of_many_that_fell_some_are_told_and_all_are_named(folder: Path) -> None:
    """Each GPU with all others, the first one alone, and the node under DDP."""
    found = evidence(folder, 70.0, 70.0)
    verdict = judged(found, past(found))
    assert verdict.reason.endswith(" and 1 more")
    assert {(culprit.kind, culprit.place.index) for culprit in verdict.culprits} == {
        ("gpu", 0),
        ("gpu", 1),
        ("node", None),
    }


def test_without_a_history_nothing_is_known(folder: Path) -> None:
    verdict = judged(evidence(folder), None)
    assert (verdict.outcome, verdict.reason) == ("inconclusive", "there is no history of these nodes (--ddp-history)")
    assert verdict.value is None


@pytest.mark.parametrize("values", [(), STEADY[:4]])
def test_too_few_runs_are_no_pass(folder: Path, values: tuple[float, ...]) -> None:
    found = evidence(folder)
    verdict = judged(found, past(found, values))
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == "none of its 4 values has 5 earlier runs to compare with"


def test_a_gpu_that_was_replaced_has_no_past_and_does_not_pass(folder: Path) -> None:
    found = evidence(folder)
    verdict = judged(found, past(found, but=dict.fromkeys(of_gpu(found, 1), ())))
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == "nothing of GPU 1 on n1 can be compared with earlier runs"
    assert "1 values have too few earlier runs to compare with" in verdict.notes


def test_a_gpu_that_was_replaced_hides_no_other_that_fell(folder: Path) -> None:
    found = evidence(folder, 70.0, 100.0)
    verdict = judged(found, past(found, but=dict.fromkeys(of_gpu(found, 1), ())))
    assert (verdict.outcome, verdict.flags) == ("failed", ("partly-known",))
    assert {culprit.place.index for culprit in verdict.culprits if culprit.kind == "gpu"} == {0}


def test_a_value_without_a_past_is_told_where_its_place_has_others(folder: Path) -> None:
    found = evidence(folder)
    (alone,) = [one for one in of_gpu(found, 0) if one.arm == "alone"]
    verdict = judged(found, past(found, but={alone: ()}))
    assert verdict.outcome == "passed"
    assert "1 values have too few earlier runs to compare with" in verdict.notes


def test_what_may_have_fallen_is_neither_passed_nor_failed_and_it_is_said_which(folder: Path) -> None:
    """GPU 1 kept its pace as far as anybody can tell, which is not far. GPU 0 fell a little, for sure not too far."""
    found = evidence(folder, 97.5, 100.0)
    verdict = judged(found, past(found, but=dict.fromkeys(of_gpu(found, 1), RESTLESS)))
    assert (verdict.outcome, verdict.culprits) == ("inconclusive", ())
    assert verdict.interval is not None
    assert verdict.interval[0] < BOUND < verdict.interval[1]
    assert verdict.reason.startswith("may have regressed: GPU 1 on n1: ")


def test_a_run_without_values_is_not_measured(tmp_path: Path) -> None:
    run = judged_run(tmp_path / "run")
    run.measurements_jsonl.write_text("", encoding="utf-8")
    verdict = judged(read_evidence(RunDirectory.open(run.path)), Baseline(SKU, at(9)))
    assert verdict.outcome == "not_measured"
    assert verdict.reason == "the run has no value to compare with earlier runs"


def test_a_change_of_software_is_told_beside_the_verdict(folder: Path) -> None:
    found = evidence(folder)
    surveys = {"n1": Survey("n1", 1.0, versions={"driver": "590.1", "torch": "2.14.0", "nccl": None})}
    seen = {"n1": {"driver": ("580.65",), "torch": ("2.14.0",), "nccl": ("2.27",)}}
    verdict = judged(replace(found, surveys=surveys), replace(past(found), versions=seen))
    assert verdict.notes[-1] == "n1: since then driver 580.65 before, 590.1 now"
