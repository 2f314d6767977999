"""Commands to type after a session."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.builders.sessions import Open


def test_the_calibration_of_a_run_extends_the_thresholds_that_it_was_judged_by(opened: Open, tmp_path: Path) -> None:
    subject = opened().source.subject
    assert subject.calibrate_command(Path("/runs/a b"), is_simulated=False) == "ddpscale calibrate '/runs/a b'"
    site = tmp_path / "thresholds.yaml"
    subject = opened(thresholds=str(site)).source.subject
    command = shlex.split(subject.calibrate_command(Path("/runs/a b"), is_simulated=True))
    assert command == ["ddpscale", "calibrate", "/runs/a b", f"--thresholds={site}", "--allow-simulated"]
