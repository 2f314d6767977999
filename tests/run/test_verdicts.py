"""Verdicts and judgements survive verdicts.json, and know their margin."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, get_args

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.coverage import Coverage, PathCoverage
from pytest_ddpscale.run.strict_json import read_as, strict_json
from pytest_ddpscale.run.verdicts import (
    AgainstSlowest,
    Blocker,
    Judgement,
    RunOutcome,
    Verdict,
    VerdictOutcome,
    read_judgement,
)
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.json_types import as_json
from tests.rows import rows


def make_verdict(bound: dict[str, float], value: float | None) -> Verdict:
    return Verdict("m[a]", "throughput_per_gpu", "a", 1, "fail", bound, "inconclusive", value)


def test_json_says_unit_and_margin_beside_the_value() -> None:
    data = as_json(make_verdict({"at_least": 100.0}, 110.0))
    assert (data["unit"], data["value"], data["bound"]) == ("img/s", 110.0, {"at_least": 100.0})
    assert data["margin"] == pytest.approx(0.1)


@rows("interval", [(0.975, 0.985), None])
def test_the_value_against_the_slowest_gpu_survives(tmp_path: Path, interval: tuple[float, float] | None) -> None:
    against = AgainstSlowest(0.98, interval, "GPU 6 on n1", 0.023)
    verdict = Verdict("m[a]", "weak_scaling_efficiency", "a", 8, "fail", {"at_least": 0.96}, "passed", 0.95)
    verdicts = replace(verdict, against_slowest=against), verdict
    judgement = Judgement("cpu", "partial", "", verdicts, coverage=Coverage(paths=(PathCoverage(0, 1, 17.2, 1),)))
    file = tmp_path / "verdicts.json"
    file.write_text(strict_json(as_json(judgement)), encoding="utf-8")
    found = read_judgement(file)
    assert found == judgement
    assert [one.against_slowest for one in found.verdicts] == [against, None]


def test_json_has_a_schema_version() -> None:
    assert as_json(Judgement("cpu", "partial", "", ()))["schema_version"] == 7


def test_a_requirement_that_was_edited_is_told(tmp_path: Path) -> None:
    data = as_json(Judgement("cpu", "partial", "", (), requirements=({"bound": 0.96},)))
    data["requirements"][0]["bound"] = 0.9
    file = tmp_path / "verdicts.json"
    file.write_text(strict_json(data), encoding="utf-8")
    with pytest.raises(RunDirectoryError, match="requirements changed since they were judged by"):
        read_judgement(file)


@rows(
    ("bound", "value", "margin"),
    [
        ({"at_least": 100.0}, 90.0, -0.1),
        ({"at_least": 100.0}, 125.0, 0.25),
        ({"at_most": 100.0}, 90.0, 0.1),
        ({"at_most": 100.0}, 125.0, -0.25),
    ],
)
def test_margin_is_positive_on_the_good_side(bound: dict[str, float], value: float, margin: float) -> None:
    found = make_verdict(bound, value).margin
    assert found is not None
    assert math.isclose(found, margin)


def test_without_a_value_there_is_no_margin() -> None:
    assert make_verdict({"at_least": 1.0}, None).margin is None


def test_only_passed_is_a_pass() -> None:
    outcomes = get_args(VerdictOutcome)
    passes = [Verdict("m[a]", "peak_memory_gib", "a", 1, "warn", {"at_most": 1.0}, o).passed for o in outcomes]
    assert dict(zip(outcomes, passes, strict=True)) == {
        "passed": True, "failed": False, "inconclusive": False, "not_measured": False, "error": False
    }  # fmt: skip


@rows("change", [{"margin": 9.0}, {"unit": "ms"}, {"margin": None}])
def test_what_follows_from_the_rest_is_computed_anew(change: dict[str, Any]) -> None:
    verdict = make_verdict({"at_least": 1.0}, 2.0)
    assert read_as(Verdict, as_json(verdict) | change) == verdict


@rows("change", [{"metric": "colour"}, {"bound": {}}, {"bound": {"at_least": 0.0}}])
def test_a_verdict_on_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected a metric and its bound"):
        read_as(Verdict, as_json(make_verdict({"at_least": 1.0}, 2.0)) | change)


FAILED = replace(make_verdict({"at_least": 1.0}, 0.5), outcome="failed")
WAIVED = replace(FAILED, waiver=Waiver("A. Name", "a fan is ordered", date(2026, 12, 31)))
PASSED = replace(FAILED, outcome="passed")
UNMEASURED = replace(FAILED, outcome="not_measured", value=None, interval=None)


@rows("change", [{"outcome": "error"}, {"flags": ("wrong-data",)}, {"flags": ("partly-known",)}])
def test_nothing_is_waived_but_a_failure_that_is_fully_known(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is waived; expected a failure"):
        replace(WAIVED, **change)


@rows(
    ("says", "verdicts", "others", "is_by_all"),
    [
        ("accepted", (FAILED,), {}, "rejected"),
        ("incomplete", (FAILED,), {}, "rejected"),
        ("accepted", (PASSED,), {"blockers": (Blocker("run", "acceptance", "a node was lost"),)}, "incomplete"),
        ("accepted", (WAIVED,), {}, "accepted_with_waivers or incomplete or partial"),
        ("rejected", (PASSED,), {}, "accepted or incomplete or partial"),
        ("accepted", (PASSED,), {"not_selected": 1}, "incomplete or partial"),
        ("accepted", (PASSED, UNMEASURED), {"allows_unmeasured": True}, "incomplete"),
    ],
)
def test_an_outcome_that_verdicts_and_blockers_contradict_is_refused(
    tmp_path: Path, says: RunOutcome, verdicts: tuple[Verdict, ...], others: dict[str, Any], is_by_all: str
) -> None:
    file = tmp_path / "verdicts.json"
    file.write_text(strict_json(Judgement("cpu", says, "all is well", verdicts, **others)))
    with pytest.raises(RunDirectoryError, match=f"says {says}, but is {is_by_all} by its verdicts and blockers"):
        read_judgement(file)


def test_a_reason_not_to_accept_cannot_be_taken_out() -> None:
    failed = replace(make_verdict({"at_least": 1.0}, 0.5), outcome="failed")
    judgement = Judgement("cpu", "rejected", "", (failed,), blockers=(Blocker("test", "t", "skipped"),))
    assert [(one.kind, one.name) for one in judgement.blockers] == [("requirement", "m[a]"), ("test", "t")]
    assert replace(judgement, notes=("n",)).blockers == judgement.blockers
    data = as_json(judgement)
    assert read_as(Judgement, data | {"blockers": data["blockers"][1:]}) == judgement
