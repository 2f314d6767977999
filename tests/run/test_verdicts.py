"""Verdicts and judgements survive verdicts.json, which says nothing that contradicts itself."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.coverage import Coverage, GpuCoverage, NodeCoverage, PathCoverage
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.verdicts import (
    AgainstSlowest,
    Blocker,
    Judgement,
    RunOutcome,
    Verdict,
    read_judgement,
)
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.json_types import as_json, read_as
from tests.rows import rows


def read(folder: Path, said: object) -> Judgement:
    """A judgement, or its JSON, as it is read from the file."""
    (folder / "verdicts.json").write_text(strict_json(said), encoding="utf-8")
    return read_judgement(folder / "verdicts.json")


PASSED = Verdict("m[a]", "throughput_per_gpu", "a", 1, "fail", {"at_least": 1.0}, "passed", 1.5, unit="img/s")
FAILED = replace(PASSED, outcome="failed", value=0.5)
UNMEASURED = replace(PASSED, outcome="not_measured", value=None)
BROKE, WHY = because("broke", "no answer"), because("slow-alone", 3, "n1", 0, because("stalls", 1, 2, 0, 2))
WAIVED = replace(FAILED, waiver=Waiver("A. Name", "a fan is ordered", date(2026, 12, 31)))
BLOCKED = Judgement("cpu", "rejected", "", (FAILED,), blockers=(Blocker("test", "t", "skipped"),))


def test_all_that_is_said_survives(tmp_path: Path) -> None:
    ends = Place("n1", 2, "GPU-a", 6, "00000000:17:00.0"), Place("n2", 0, "cpu", 0)
    culprits = (
        Culprit("link", ends, because("text", "2 GB/s"), is_certain=False),
        Culprit("node", (Place("n3"),), because("slow"), slowdown=1.3),
    )
    gpus = GpuCoverage(ends[0], ("training",)), GpuCoverage(Place("n1", None, "", 7), (), "GPU is lost")
    against = AgainstSlowest(0.98, (0.975, 0.985), "GPU 6 on n1", 0.023)
    why = because("all", because("missed"), because("slow-at", (because("slow-link-of-pairs", ("n1", "n2"), 1.5),)))
    verdicts = replace(PASSED, against_slowest=against), replace(FAILED, culprits=culprits, because=why), WAIVED
    coverage = Coverage((NodeCoverage("n1", ("survey",), gpus=gpus),), paths=(PathCoverage(0, 1, 17.2, 1),))
    judgement = Judgement("cpu", "rejected", "", verdicts, coverage=coverage)
    assert read(tmp_path, judgement) == judgement


@rows(
    ("code", "said"),
    [
        ("passed", {}),
        ("failed", {"outcome": "failed", "because": because("text", "the interval misses the bound")}),
        ("wrong-data", {"outcome": "failed", "because": BROKE, "flags": ("wrong-data",)}),
        ("broke", {"outcome": "error", "because": because("all", because("one-of", "n1", 2, "nodes", BROKE), WHY)}),
        ("far", {"because": because("lowest-of", because("far"), 2, "nodes", "n1")}),
        ("kept", {"because": because("kept-on-each", because("kept"), 2, "nodes", "n1")}),
        ("perhaps-chance", {"because": because("perhaps-chance", because("missed"), 1, 2, "nodes")}),
    ],
)
def test_the_reason_in_a_word(code: str, said: dict[str, Any]) -> None:
    assert replace(PASSED, **said).code == code


@rows(
    ("bound", "value", "margin"),
    [
        ({"at_least": 100.0}, 90.0, -0.1),
        ({"at_most": 100.0}, 90.0, 0.1),
        ({"at_most": 100.0}, None, None),
    ],
)
def test_json_says_unit_and_margin_which_is_positive_on_the_good_side(
    bound: dict[str, float], value: float | None, margin: float | None
) -> None:
    data = as_json(replace(PASSED, value=value, bound=bound))
    assert (data["unit"], data["value"], data["bound"], data["margin"]) == ("img/s", value, bound, margin)


NOT_READ = because("not-read", "device_utilization", "GPU 3", "n1", "0 % busy, although it drew 390 W of 400 W")


@rows(
    ("why", "waivable"),
    [
        (NOT_READ, True),
        (because("not-read", "device_utilization"), False),
        (because("no-round", 8, "weak"), False),
        (because("nodes-missing", ("n0",), 2, ("n1",), (NOT_READ,)), True),
        (because("nodes-missing", ("n0",), 2, ("n1",), (NOT_READ,)), "undecided"),
        (because("nodes-missing", ("n0",), 3, ("n1", "n2"), (NOT_READ,)), False),
        (because("nodes-missing", ("n0",), 3, ("n1", "n2"), (NOT_READ, because("no-round", 8, "weak"))), False),
    ],
)
def test_what_a_driver_does_not_give_can_be_waived(why: Reason, waivable: Any) -> None:
    is_waivable, flags = waivable is True, ("undecided",) * (waivable == "undecided")  # another node
    unread = replace(UNMEASURED, because=why, flags=flags)
    assert (unread.is_unreadable, unread.blocks()) == (is_waivable, True)
    with pytest.raises(ValueError, match=KNOWN) if not is_waivable else nullcontext():
        assert not replace(unread, waiver=WAIVED.waiver).blocks()


NOTHING, KNOWN = "expected a metric and a bound", "is waived; expected a fully known failure"


@rows(
    ("verdict", "change", "why"),
    [
        (PASSED, {"metric": "colour"}, NOTHING),
        (PASSED, {"bound": {}}, NOTHING),
        (PASSED, {"bound": {"at_least": 0.0}}, NOTHING),
        (WAIVED, {"outcome": "error"}, KNOWN),
        (WAIVED, {"flags": ["wrong-data"]}, KNOWN),
        (WAIVED, {"flags": ["partly-known"]}, KNOWN),
    ],
)
def test_a_verdict_that_cannot_be_is_refused(verdict: Verdict, change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_as(Verdict, as_json(verdict) | change)


@rows(
    ("says", "verdicts", "others"),
    [
        ("accepted", (FAILED,), {}), ("partial", (FAILED,), {}),
        ("accepted", (PASSED,), {"blockers": (Blocker("run", "acceptance", "a node was lost"),)}),
        ("accepted", (WAIVED,), {}), ("accepted_with_waivers", (PASSED,), {}),
        ("rejected", (PASSED,), {}),
        ("accepted", (PASSED,), {"not_selected": 1}),
        ("accepted", (PASSED, UNMEASURED), {"allows_unmeasured": True}),
    ],
)  # fmt: skip
def test_an_outcome_that_verdicts_and_blockers_contradict_is_refused(
    tmp_path: Path, says: RunOutcome, verdicts: tuple[Verdict, ...], others: dict[str, Any]
) -> None:
    with pytest.raises(RunDirectoryError, match=f"says {says}, against its verdicts and blockers"):
        read(tmp_path, Judgement("cpu", says, "all is well", verdicts, **others))


@rows(
    ("change", "why"),
    [
        ({"requirements": [{"bound": 0.9}]}, "requirements changed since they were judged by"),
        *(({"schema_version": other}, f"has schema_version {other}; expected 8") for other in (7, 9)),
    ],
)
def test_what_was_edited_or_is_of_another_version_is_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    with pytest.raises(RunDirectoryError, match=why):
        read(tmp_path, as_json(Judgement("cpu", "partial", "", (), requirements=({"bound": 0.96},))) | change)


def test_what_follows_from_the_rest_is_computed_anew() -> None:
    assert read_as(Verdict, as_json(PASSED) | {"margin": 9.0, "unit": "ms"}) == replace(PASSED, unit="samples/s")
    assert [(blocker.kind, blocker.name) for blocker in BLOCKED.blockers] == [("requirement", "m[a]"), ("test", "t")]
    data = as_json(replace(BLOCKED, notes=("n",)))
    assert read_as(Judgement, data | {"blockers": data["blockers"][1:], "notes": []}) == BLOCKED
