"""A session measures what it asked for, once, and never concludes more than it knows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import HistoryError, OptionError, RunDirectoryError
from pytest_ddpscale.history.regression import Baseline
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.session import evidence
from pytest_ddpscale.session import session as module
from pytest_ddpscale.session.session import AcceptanceSession
from tests.approved import assert_approved, masked
from tests.builders.sessions import InstantGang, Open, nothing
from tests.session.conftest import begun, told


def test_what_is_about_to_happen_is_on_disk_first(measuring: AcceptanceSession) -> None:
    source, run = measuring.source, measuring.source.measured_run
    record = run.read_run()
    assert (record.sku, record.status, record.finished_at) == (source.subject.sku, "running", None)
    assert (run.read_plan(), source.evidence) == (source.plan, None)
    assert record.argv == ("pytest", "--password", "***")
    assert record.thresholds is not None
    assert record.thresholds.digests == source.subject.thresholds.digests
    assert record.versions["pytest_ddpscale"] == __version__


def test_limits_and_isolation_are_passed_on(opened: Open, gangs: list[InstantGang]) -> None:
    session = begun(opened(ddp_budget="10m", ddp_inactivity_limit="90s", ddp_profile="5"))
    session.judge(session.source.cases[0])
    limits, is_isolated = gangs[0].limits, gangs[0].named["isolate"]
    assert (limits.budget_s, limits.inactivity_s, limits.startup_s, is_isolated) == (600.0, 90.0, 600.0, True)
    assert (limits.total_s or 0.0) > 600.0, "the plan gives one, and it contains the start"


def test_a_question_that_makes_no_sense_is_refused(measuring: AcceptanceSession) -> None:
    for question in (
        ("speed", "r", 1), ("generation_ratio", "r", 1), ("throughput_per_gpu", "s", 1), ("throughput_per_gpu", "r", 3),
        ("strong_scaling_speedup", "r", 2),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=r"which is not measured; .* Add a requirement on it"):
            measuring.samples(*question)


def test_why_the_history_lacks_a_run_is_told_and_costs_nothing(measuring: AcceptanceSession, tmp_path: Path) -> None:
    measuring.judge(measuring.source.cases[0])
    judgement, run = measuring.conclude(interrupted=False, spoiled=()), measuring.source.measured_run
    (tmp_path / "file").touch()
    measuring.history_file = tmp_path / "file" / "site.sqlite"
    why = measuring.remember(judgement)
    assert "cannot be used (Not a directory)" in why or "cannot be used (File exists)" in why
    run.run_json.write_text(run.run_json.read_text("utf-8").replace('"started_at":"20', '"started_at":"yesterday'))
    measuring.history_file = tmp_path / "site.sqlite"
    assert "yesterday" in measuring.remember(judgement)


def test_what_cannot_be_read_is_not_measured_again(
    measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RunDirectoryError("measurements.jsonl", "is broken", "")

    monkeypatch.setattr(evidence, "read_evidence", broken)
    for _ in range(2):
        with pytest.raises(RunDirectoryError, match="is broken"):
            measuring.judge(measuring.source.cases[0])
    assert len(gangs) == 1


def full(gang: InstantGang, plan: Plan) -> None:
    raise OSError(28, "No space left on device")


def full_while_recording(gang: InstantGang, plan: Plan) -> None:
    raise gang.run.unwritten(gang.run.measurements_jsonl, OSError(28, "No space left on device"))


def killed_at_the_end(gang: InstantGang, plan: Plan) -> None:
    measure(gang, plan)
    raise KeyboardInterrupt


def broken_history(*_: object) -> None:
    raise HistoryError("history.sqlite", "is broken", "")


measure = InstantGang.measure
# What the gang is like, the cases whose tests ask for a verdict, and how the session ends.
SCENES: dict[str, tuple[dict[str, Any], Sequence[int], dict[str, Any]]] = {
    "one launch answers what fits, in the order of the file": ({}, (2, 1, 0), {}),
    "a case whose test never asked is judged by what was measured": ({}, (0,), {}),
    "a study breaks": ({"breaks": "rank 1 on here failed in warm-up: no memory"}, (0,), {}),
    "a write error ends measuring and not the session": ({"measure": full}, (0, 1), {}),
    "a record cannot be written": ({"measure": full_while_recording}, (0, 1), {}),
    # What ended it may be the very fault that was looked for, however good its rounds were.
    "a study has no end": ({"ends": False, "measure": killed_at_the_end}, (0,), {"interrupted": True}),
    # Concluding measures nothing.
    "nobody asked": ({}, (), {}),
    "the session was interrupted": ({}, (), {"interrupted": True}),
    "pytest ended before": ({}, (), {"stopped": "stopping after 1 failures"}),
    "what needs more ranks than there are is not launched": ({}, (2,), {}),
    "the history cannot be read": ({}, (0,), {}),
}


def test_a_session_never_concludes_more_than_it_knows(
    opened: Open, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = list[str]()
    for name, (gang, asked, end) in SCENES.items():
        session = begun(opened(ddp_run_dir=str(tmp_path / name)))
        gangs.clear()
        with monkeypatch.context() as patch:
            for key, value in gang.items():
                patch.setattr(InstantGang, key, value)
            if "history" in name:
                patch.setattr(module, "baseline_of", broken_history)
            for at in asked:
                case = session.source.cases[at]
                with suppress(KeyboardInterrupt):
                    verdict = session.judge(case)
                    assert session.judge(case) is verdict, "a verdict once given stays"
            judgement = session.conclude(**{"interrupted": False, "spoiled": (), **end})
        said += [f"{name}: {len(gangs)} launches", *told(judgement)]
    assert_approved("conclusions.txt", masked("\n".join(said), tmp_path))


def test_the_spread_of_earlier_launches_widens_the_last_verdict_and_none_before_and_is_kept(
    measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "baseline_of", lambda *_: Baseline("cpu", "2026-01-31T12:00:00+00:00"))
    monkeypatch.setattr(module, "with_launch_deviation", lambda verdict, *_: replace(verdict, launch_sd=0.5))
    source = measuring.source
    source.measure(nothing)
    assert source.evidence is not None
    assert measuring.so_far(source.evidence, "", "").verdicts[0].launch_sd != 0.5
    assert not source.measured_run.baseline_json.exists()
    assert measuring.judge(source.cases[0]).launch_sd == 0.5
    assert source.measured_run.baseline_json.exists()
