"""Real plugins beside this one; the whole table takes minutes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.scripts import benchmark

pytestmark = pytest.mark.lab


def test_plugins_change_no_verdict_or_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pytest-timeout stops no measurement, and pytest-forked is refused."""
    script: Any = benchmark("plugins")
    monkeypatch.setattr(script, "RUNS", {"recorded-cpu": script.RUNS["recorded-cpu"]})
    monkeypatch.setattr("sys.argv", ["plugins.py", "--only", "pytest-forked", "pytest-timeout"])
    assert script.main() == 0, capsys.readouterr().err
    assert capsys.readouterr().out.count("| same verdicts") == 2
