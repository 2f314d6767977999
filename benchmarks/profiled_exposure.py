"""Exposed communication by two methods: timed rounds of ddp@2 and no_sync@2, and steps of both under torch.profiler.

Runs whole sessions of `pytest --gpu-sku=cpu --ddp-profile=N` on this machine, with two ranks over gloo, on a workload
that mostly computes and on one that mostly communicates. Prints how often the intervals of the two methods overlap: if
both are right, two 95 % intervals overlap in 99 % of sessions.

    python benchmarks/profiled_exposure.py --runs 3 --json docs/evidence/profiled-exposure.json
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.judge.intervals import Estimate, mean_estimate
from pytest_ddpscale.report.profile_text import do_agree, profiled_exposures
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory

THRESHOLDS = """
schema_version: 2
sources: {nobody: a benchmark}
workloads:
  computes: {model: resnet18, precision: fp32, image_size: 64, memory_format: contiguous, num_classes: 10}
  communicates: {model: resnet18, precision: fp32, image_size: 32, memory_format: contiguous, num_classes: 10}
skus:
  cpu:
    description: any CPU
    detect: {device: cpu}
    batch: {computes: {per_gpu: 16, global: 16}, communicates: {per_gpu: 2, global: 4}}
    requirements:
      - {exposed_communication: {2: 0.5}, of: computes, published: nobody, bound: 0.99, because: only measured}
      - {exposed_communication: {2: 0.5}, of: communicates, published: nobody, bound: 0.99, because: only measured}
"""
CONFIDENCE = 0.95
HEADER = ("run, workload", "timed rounds", "profiled steps", "of that waiting", "slower computing", "agree")
CHECKOUT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Measure, and print a row for each session and workload."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=3, help="sessions; default: 3")
    parser.add_argument("--steps", type=positive_int, default=12, help="profiled steps of each arm; default: 12")
    parser.add_argument("--rounds", type=positive_int, default=12, help="timed rounds; default: 12")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    steps = {"profiled_steps": arguments.steps, "rounds": arguments.rounds}
    for number in range(1, arguments.runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), arguments.steps, arguments.rounds)
            evidence = read_evidence(RunDirectory.open(Path(folder) / "run"))
            rows += [{"run": number, "load_average": os.getloadavg()[0], **row} for row in rows_of(evidence)]
        keep(arguments.json, "profiled_exposure", {**steps, "confidence": CONFIDENCE, "rows": rows})  # each is minutes
    print(table(HEADER, [_cells(row) for row in rows]))
    print(f"the intervals of both methods meet in {sum(row['agree'] for row in rows)} of {len(rows)}")
    return 0


def measure(folder: Path, steps: int, rounds: int) -> None:
    """One session; its requirements accept no machine, so it ends with exit code 1.

    Raises:
        RuntimeError: the session did not finish.
    """
    (folder / "thresholds.yaml").write_text(THRESHOLDS, encoding="utf-8")
    command = [
        sys.executable, "-m", "pytest", str(CHECKOUT / "acceptance"), f"--rootdir={folder}", "--gpu-sku=cpu",
        "--ddp-run-dir=run", f"--ddp-profile={steps}", f"--ddp-rounds={rounds}", "--ddp-block=0.5s",
        "-k", "exposed_communication", "-q", "-p", "no:cacheprovider",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"exit code {done.returncode}: {done.stdout}{done.stderr}")


def rows_of(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Result of both methods for each workload: mean, lower and upper limit of shares of a step."""
    for one in profiled_exposures(evidence):
        rounds, profile = _estimate(one.by_rounds), _estimate(one.by_profile)
        hidden = next(p for p in evidence.profiles if (p.study, p.arm) == (one.study, one.arm))
        yield {
            "workload": one.study.partition("/")[2],
            "by_rounds": _listed(rounds),
            "by_profile": _listed(profile),
            "waiting": _listed(_estimate(one.waiting)),
            "slower_computing": _listed(_estimate(one.by_profile - one.waiting)),
            "all_reduce_hidden": sum(hidden.hidden_ms) / sum(hidden.all_reduce_ms),
            "agree": do_agree(rounds, profile),
        }


def _estimate(values: FloatArray) -> Estimate:
    return mean_estimate(values.tolist(), CONFIDENCE)


def _listed(estimate: Estimate) -> list[float]:
    return [estimate.value, *estimate.interval]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    names = ("by_rounds", "by_profile", "waiting", "slower_computing")
    numbers = ("{:.1f} % ({:.1f} to {:.1f})".format(*(100 * value for value in row[name])) for name in names)
    return (f"{row['run']}, {row['workload']}", *numbers, "yes" if row["agree"] else "no")


if __name__ == "__main__":
    raise SystemExit(main())
