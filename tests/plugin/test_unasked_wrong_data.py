"""Wrong data of a probe on which nothing is judged: no run is accepted with it, and every run says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from tests.plugin.site import LAB_GPU, Site, outcome_line, output_of

HEAD = f"""\
{LAB_GPU}    requirements:
      - {{throughput_per_gpu: {{1: 1189.5}}, of: resnet152-fp16, published: paper, margin: 5 %}}
"""
COPY = "      - {memory_bandwidth_gbps: 1500, probe: memory-copy, published: paper, margin: 5 %}\n"
SAID = "wrong data in the probe memory-copy, as seen by GPU 3 of simulated-0"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one wrong copy, made before any site, as modules first imported within one are forgotten with it."""
    thresholds, run = tmp_path / "thresholds.yaml", tmp_path / "run"
    thresholds.write_text(HEAD + COPY, encoding="utf-8")
    assert main(["simulate", f"--thresholds={thresholds}", "--gpu-sku=lab-gpu", "--gpus=8", f"--out={run}"]) == 0
    lines = (run / "measurements.jsonl").read_text(encoding="utf-8").splitlines()
    at = next(number for number, line in enumerate(lines) if '"arm":"memory-copy"' in line and '"timed"' in line)
    wrong = str([rank != 3 for rank in range(8)]).lower()
    lines[at] = lines[at].replace('"is_correct":true', f'"is_correct":{wrong}')
    (run / "measurements.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run


@pytest.mark.parametrize("speed", ["1189.5", "1500"])
def test_every_run_says_it_once_whatever_else_is_wrong(speed: str, run: Path, site: Site) -> None:
    site.write("thresholds.yaml", HEAD.replace("1189.5", speed))
    result = site.judge("--thresholds=thresholds.yaml", run=str(run))
    assert outcome_line(result).startswith("REJECTED" if speed == "1500" else "INCOMPLETE: ")
    said = " ".join(output_of(result).split())
    assert said.count(SAID) == 1
    assert "on which no requirement is judged" in said
    for report in ("report.md", "report.html", "verdicts.json"):
        (found,) = site.path.rglob(report) if not (run / report).is_file() else [run / report]
        assert SAID in found.read_text(encoding="utf-8"), report
