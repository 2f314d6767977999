"""A node that was rejected by a check or a probe may come back once a later run keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.report.culprits_text import read_findings, settled
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import RunOutcome, Verdict
from tests.builders.culprits import gpu
from tests.builders.records import gang_on
from tests.report.judged import STARTED_UNIX_S, failed, write_judged_run

LATER = STARTED_UNIX_S + 3600
TRAINED = ("alone", "ddp@8")
SURVEY = Survey("n1", 1.0)
GANG = gang_on(["n1"], 1, "GPU-0", 1)
PROBE = Block(
    study="probes", arm="all-reduce-32mib@8", round=0, gang=1, ranks=(0,), count=1, work=1.0, seconds=1.0,
    began_unix_s=1.0,
)  # fmt: skip


def checked(*culprits: Any, **changes: Any) -> Verdict:
    fields = {"id": "node_check[ecc]", "workload": "ecc", "world_size": 1, "bound": {"at_least": 1}} | changes
    return failed(*culprits, metric="node_check", **fields)


def probed(*culprits: Any, **changes: Any) -> Verdict:
    fields = {"id": "busbw_gbps[all-reduce-32mib-8gpu]", "workload": "all-reduce-32mib", "bound": {"at_least": 100}}
    return failed(*culprits, metric="busbw_gbps", **(fields | changes))


def regressed(*culprits: Any, **changes: Any) -> Verdict:
    return failed(*culprits, metric="no_regression", **({"id": "no_regression[node]", "workload": ""} | changes))


def kept(verdict: Any) -> Verdict:
    """The same requirement, kept."""
    found: Verdict = verdict(outcome="passed", value=1.5)
    return found


def said(
    tmp_path: Path,
    before: Verdict,
    now: Verdict,
    records: Sequence[AnyRecord],
    arms: Sequence[str] = (),
    outcome: RunOutcome = "partial",
) -> list[tuple[str, str]]:
    """Of a rejection, and a later run of the same node."""
    old = write_judged_run(tmp_path / "old", "rejected", ["n1", "n2"], [before])
    later = write_judged_run(
        tmp_path / "new", outcome, ["n1"], [now], started_unix_s=LATER, arms=arms, records=[GANG, *records]
    )
    return [(one.use, one.host) for one in settled([read_findings(old), read_findings(later)])]


@pytest.mark.parametrize("verdict", [checked, probed, regressed])
def test_who_fails_it_is_drained(tmp_path: Path, verdict: Any) -> None:
    run = write_judged_run(tmp_path / "r", "rejected", ["n1", "n2"], [verdict(gpu("n1"))])
    assert [(one.use, one.host) for one in read_findings(run).findings] == [("drain", "n1")]


@pytest.mark.parametrize(
    ("use", "verdict", "records", "arms"),
    [
        ("look", checked, [SURVEY], ()),
        ("look", probed, [PROBE], ()),
        ("look", regressed, [PROBE], ()),
        ("look", regressed, [], TRAINED),
        ("drain", checked, [PROBE], TRAINED),
        ("drain", checked, [Survey("n3", 1.0)], TRAINED),
        ("drain", probed, [SURVEY, altered(PROBE, arm="all-reduce-32mib@4")], TRAINED),
        ("drain", probed, [altered(PROBE, arm="all-reduce-1gib@8")], ()),
        ("drain", regressed, [SURVEY], ()),
    ],
)
def test_only_a_later_run_that_did_the_same_on_it_and_keeps_it_leaves_the_node_to_a_person(
    tmp_path: Path, use: str, verdict: Any, records: list[AnyRecord], arms: Sequence[str]
) -> None:
    assert said(tmp_path, verdict(gpu("n1")), kept(verdict), records, arms)[0] == (use, "n1")


def test_a_node_that_was_only_looked_at_and_probed_is_not_accepted(tmp_path: Path) -> None:
    for arms, expected in ((TRAINED, [("accepted", "n1")]), ((), [])):
        run = write_judged_run(
            tmp_path / f"r{len(arms)}", "accepted", ["n1"], [kept(checked)], arms=arms, records=[GANG, SURVEY, PROBE]
        )
        assert [(one.use, one.host) for one in read_findings(run).findings] == expected
