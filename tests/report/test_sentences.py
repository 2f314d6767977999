"""What a report says of a faulty machine in one place contradicts neither its verdict nor what it says in another."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.report.cause import causes, headline
from pytest_ddpscale.report.culprits_text import read_findings
from tests.builders.simulated_runs import judged_run


def test_a_gpu_that_stopped_reporting_is_at_fault_in_the_report_and_drained(tmp_path: Path) -> None:
    run, judgement = judged_run(tmp_path, "missing-rank:3:2")
    assert judgement.outcome == "rejected"
    first, *others = causes(judgement)
    assert [(one.host, one.gpu_index, one.is_certain) for one in first.culprits] == [("simulated-0", 3, True)]
    assert not any(cause.culprits for cause in others)
    assert headline(judgement).startswith("REJECTED: GPU 3 (SIM-3) on simulated-0: lost under load: not measured in 6 ")
    found = read_findings(run.path, lambda *_: judgement, rehearses=True).findings
    assert [(one.use, one.host) for one in found] == [("drain", "simulated-0")]


def test_a_rank_that_the_end_of_a_run_cut_short_is_not_lost(tmp_path: Path) -> None:
    _, judgement = judged_run(tmp_path, "missing-rank:3:7")
    assert judgement.outcome == "incomplete"
    assert not any(cause.culprits for cause in causes(judgement))
