"""Sites whose sessions measure for real, and quickly: pytest, agents and ranks are forks, and ranks hardly warm up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.forks.start import command, forking

CHECKOUT = Path(__file__).parents[2]
HARDLY_WARM_UP = ("-p", "tests.integration.hardly_warm_up")
QUICK = ("--ddp-rounds=8", "--ddp-block=0.02s", "-p", "no:cacheprovider", *HARDLY_WARM_UP)
LIMIT_S = 300


def make_site(path: Path, thresholds: str) -> Path:
    """A folder with acceptance tests and thresholds."""
    shutil.copytree(CHECKOUT / "acceptance", path / "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
    (path / "thresholds.yaml").write_text(thresholds, encoding="utf-8")
    return path


def session(site: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """pytest in a site, to its end."""
    return subprocess.run(
        command("pytest", *arguments), cwd=site, env=forking(**{**os.environ, **environ}),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def measured(site: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A session that measures the SKU cpu into the run directory ``run``, to its end."""
    return session(site, "--gpu-sku=cpu", "--ddp-run-dir=run", *QUICK, *arguments, **environ)


def verdicts_of(site: Path) -> dict[str, Any]:
    """verdicts.json of that run."""
    record: dict[str, Any] = json.loads((site / "run" / "verdicts.json").read_text(encoding="utf-8"))
    return record
