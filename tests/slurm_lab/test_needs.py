"""Where no lab can run its tests are skipped with the remedy, and fail where they must run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.slurm_lab import fixtures, needs

INSTALL = "apt-get install -y slurm-wlm slurmctld slurmd munge iproute2 nftables"


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = needs.why_not() or ""
    assert "needs root" in reason
    assert INSTALL in reason


def test_missing_commands_are_named_with_what_installs_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(needs, "SEARCH_PATH", str(tmp_path))
    reason = needs.why_not() or ""
    assert "slurmctld, slurmd, munged" in reason
    assert INSTALL in reason


def test_a_machine_without_the_controller_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(needs, "COMMANDS", ())
    monkeypatch.setattr(needs, "cpu_controller", lambda: None)
    assert "cgroup v1 cpu controller" in (needs.why_not() or "")


@pytest.mark.parametrize(
    ("required", "outcome"), [("", pytest.skip.Exception), ("required", pytest.fail.Exception)], ids=["skip", "fail"]
)
def test_what_cannot_run_is_skipped_unless_it_is_required(
    required: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPSCALE_LAB", required)
    monkeypatch.setattr(fixtures, "why_not", lambda: f"the Slurm lab needs root: {INSTALL}")
    with pytest.raises(outcome, match=INSTALL):
        fixtures.require_lab()
