"""The workload that the ``cpu`` SKU trains: candidates beside each other, and the numbers its bounds come from.

    python benchmarks/cpu_workload.py runs OUT --runs 3 [--candidates shufflenet_v2_x0_5@96 resnet18@64 …]
    python benchmarks/cpu_workload.py table OUT
    python benchmarks/cpu_workload.py bounds OUT/CANDIDATE

``runs`` runs ``pytest --gpu-sku=cpu`` with each candidate in turn, as often as asked, in an order that changes from
turn to turn, so that all of them meet the machine's slow minutes. Without candidates it runs the packaged workload.
``table`` prints a line for each candidate, ``bounds`` the median and the range of each requirement's value.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGED = "packaged"
LIMIT_S = 600.0
# The workload of the cpu SKU in thresholds.yaml: what a candidate replaces.
WORKLOAD = re.compile(r"^(  shuffle96-fp32: \{model: )(\w+)(, precision: fp32, image_size: )(\d+)", re.MULTILINE)


def thresholds_with(candidate: str) -> str:
    """The packaged thresholds file with another model and size, such as ``resnet18@64``, for the cpu SKU."""
    model, _, size = candidate.partition("@")
    text = (ROOT / "thresholds.yaml").read_text(encoding="utf-8")
    changed, places = WORKLOAD.subn(rf"\g<1>{model}\g<3>{size}", text)
    if places != 1:
        raise SystemExit(f"thresholds.yaml: found {places} lines with the workload of cpu; expected 1")
    return changed


def run(candidate: str, folder: Path) -> None:
    """One acceptance run; its wall time in seconds goes beside its verdicts."""
    arguments = ["--gpu-sku=cpu", f"--ddp-run-dir={folder}", "-q"]
    if candidate != PACKAGED:
        file = folder.parent / "thresholds.yaml"
        file.write_text(thresholds_with(candidate), encoding="utf-8")
        arguments.append(f"--thresholds={file}")
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
        check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    seconds = time.monotonic() - began
    (folder / "wall_s.json").write_text(json.dumps({"wall_s": seconds, "exit_code": ended.returncode}))
    print(f"{candidate}: {folder.name}: exit code {ended.returncode} after {seconds:.0f} s", flush=True)


def run_all(out: Path, candidates: Sequence[str], runs: int) -> None:
    """Each candidate `runs` times, in turns of random order."""
    order = random.Random(0)
    for number in range(1, runs + 1):
        for candidate in order.sample(list(candidates), len(candidates)):
            folder = out / candidate / f"{number:02}"
            if not (folder / "wall_s.json").exists():
                folder.parent.mkdir(parents=True, exist_ok=True)
                run(candidate, folder)


def verdicts_of(folder: Path) -> list[dict[str, Any]]:
    """The verdicts of a run that were measured."""
    judged = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    return [one for one in judged["verdicts"] if one["value"] is not None]


def width_of(verdict: dict[str, Any]) -> float | None:
    """Half the interval's width over the value."""
    if verdict["interval"] is None or None in verdict["interval"] or not verdict["value"]:
        return None
    low, high = verdict["interval"]
    return float((high - low) / 2 / verdict["value"])


def row_of(candidate: Path) -> str:
    """A candidate's line: seconds, rounds to decide, correlation of rounds, half-width of two intervals, outcomes."""
    folders = sorted(path.parent for path in candidate.glob("*/wall_s.json"))
    walls = [json.loads((folder / "wall_s.json").read_text())["wall_s"] for folder in folders]
    outcomes = [json.loads((folder / "verdicts.json").read_text())["outcome"] for folder in folders]
    trained = [one for folder in folders for one in verdicts_of(folder) if "probe" not in one["id"] and one["rounds"]]
    trained = [one for one in trained if one["workload"]]
    weak = [one for one in trained if one["metric"] in ("throughput_per_gpu", "weak_scaling_efficiency")]
    rounds = [max(one["rounds"] for one in verdicts_of(folder)) for folder in folders]
    correlations = [one["correlation"] for one in weak if one["correlation"] is not None]
    widths = [width for one in weak if (width := width_of(one)) is not None]
    return (
        f"| {candidate.name} | {len(folders)} | {median(walls):.0f} ({min(walls):.0f} … {max(walls):.0f}) | "
        f"{median(rounds):g} ({min(rounds)} … {max(rounds)}) | {median(correlations):.2f} | "
        f"± {median(widths):.0%} (≤ {max(widths):.0%}) | {outcomes.count('accepted')} of {len(outcomes)} |"
    )


def table(out: Path) -> Iterator[str]:
    """Candidates as Markdown."""
    yield "| model@px | runs | wall s | most rounds of a study | correlation of rounds | half-width | accepted |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    yield from map(row_of, sorted(path for path in out.iterdir() if path.is_dir()))


def bounds(candidate: Path) -> Iterator[str]:
    """Median and range of each requirement's value, in its unit, as Markdown."""
    values: dict[str, list[float]] = {}
    bound: dict[str, str] = {}
    folders = sorted(path.parent for path in candidate.glob("*/wall_s.json"))
    for folder in folders:
        for one in verdicts_of(folder):
            values.setdefault(one["id"], []).append(one["value"])
            bound[one["id"]] = " ".join(f"{side} {number:g}" for side, number in one["bound"].items())
    yield f"{len(folders)} runs\n"
    yield "| requirement | median | least | most | bound |\n| --- | ---: | ---: | ---: | --- |"
    for name, found in values.items():
        yield f"| {name} | {median(found):.4g} | {min(found):.4g} | {max(found):.4g} | {bound[name]} |"


def main() -> None:
    """Run or print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["runs", "table", "bounds"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=1, help="of each candidate")
    parser.add_argument("--candidates", nargs="+", default=[PACKAGED], metavar="MODEL@PX")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    if arguments.what == "runs":
        run_all(out, arguments.candidates, arguments.runs)
    else:
        print(*(table if arguments.what == "table" else bounds)(out), sep="\n")


if __name__ == "__main__":
    main()
