"""What a report says of a faulty machine in one place contradicts neither its verdict nor what it says in another."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from pytest_ddpscale.report.causes import causes, headline
from pytest_ddpscale.report.terminal import brief_lines, table_lines
from pytest_ddpscale.report.words.verdicts import short_name
from pytest_ddpscale.run.verdicts import Judgement
from tests.builders.clusters import a100
from tests.builders.simulated_runs import judged_run
from tests.report.written import ticket_of


def all_said(judgement: Judgement) -> str:
    """Everything on the terminal, with and without ``-v``."""
    return "\n".join(line for lines in (brief_lines, table_lines) for line, _ in lines(judgement, 1000))


def test_a_rank_that_the_end_of_a_run_cut_short_is_not_lost(tmp_path: Path) -> None:
    _, judgement = judged_run(tmp_path, "missing-rank:3:7")
    assert judgement.outcome == "incomplete"
    assert not any(cause.culprits for cause in causes(judgement))


def test_a_rejected_node_is_not_called_too_little_slow_or_uncertain(tmp_path: Path) -> None:
    _, judgement = judged_run(tmp_path, "throttle:1:1.05", gpus=64, rounds=16)
    assert headline(judgement).startswith("REJECTED: node simulated-1 is 1.05× slower than its peers")
    assert not any("on simulated-1" in note and "not clearly enough" in note for note in judgement.notes)


def test_a_gpu_to_look_at_is_not_denied_and_a_slow_one_is_not_excluded(tmp_path: Path) -> None:
    cluster = a100(unwaited=-0.03)
    _, judgement = judged_run(tmp_path, "slow-gpu:3:1.03", rounds=16, cluster=cluster)
    said = all_said(judgement)
    assert "look at GPU 3 on simulated-0" in said
    assert "every GPU is within 5.0 % of its peers, so no device is named" in headline(judgement)
    assert "no device is named for it" in said
    assert "GPUs are alike" not in said


def test_a_failure_whose_value_meets_the_bound_says_why(tmp_path: Path) -> None:
    run, judgement = judged_run(tmp_path, "corrupt-rank:3")
    [row, *_] = [one for one in judgement.verdicts if one.outcome == "failed" and (one.margin or 0) > 0]
    report = ticket_of(judgement, run.read_run())
    assert f": {short_name(row)} | **FAIL** |" in report
    assert re.search(rf"- .*: {short_name(row)}.*: Cause 1: computed wrong data in 8 of 8 rounds", report)
    alone = replace(row, culprits=(), flags=())
    said = "\n".join(line for line, _ in brief_lines(replace(judgement, verdicts=(alone,), coverage=None), 1000))
    assert said.count("computed wrong data") == 2, "in the headline and below the row"
