"""How long a sound 8x A100 node is measured until everything published about it is decided, by simulation.

    python benchmarks/time_to_verdict.py --json time_to_verdict.json
    python benchmarks/time_to_verdict.py --everything --fault slow-gpu:3:1.1

The published matrix: ResNet-152 and ViT-B/16 in fp16 and bf16, weak scaling on 1, 2, 4 and 8 GPUs, strong scaling on
1 and 8: 24 configurations. Every requirement of the thresholds file with a published figure for one of them is
judged, on a simulated node that is as fast as published. A study ends when all its requirements are decided, after at
least 8 rounds, or at its limit; an arm that only decided requirements need is no longer timed. Machine time is
counted like in `pytest --collect-only`: warm-up, timed blocks, untimed steps before each, the overhead of each block;
the start-up of the gang once. `--everything` judges all requirements on training of all workloads instead, and
`--fault` adds a fault. The published procedure is shown for comparison: 60 s of warm-up and 600 s for each
configuration.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from reporting import argument_parser, keep, positive_int, table
from simulated_session import DecidedStudy, decide

from pytest_ddpscale.plan.estimate import STARTUP_S, round_seconds, warm_up_seconds
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

SKU = "a100-sxm4-80gb"
WORKLOADS = ("resnet152-fp16", "resnet152-bf16", "vit-b-16-fp16", "vit-b-16-bf16")
METRICS = (
    "throughput_per_gpu",
    "weak_scaling_efficiency",
    "strong_scaling_speedup",
    "strong_scaling_efficiency",
    "device_utilization",
    "peak_memory_gib",
)
CONFIDENCE = 0.95
# At a noise of 0.3 %: of the matrix, and of everything.
EXPECTED_MINUTES, EXPECTED_OF_EVERYTHING_MINUTES = 18.0, 26.5
PUBLISHED_CONFIGURATIONS = 24
PUBLISHED_S = 60.0 + 600.0


@dataclass(frozen=True)
class StudyTime:
    """One study in one run.

    Attributes:
        study: its id.
        rounds: how many it took.
        seconds: of machine time.
        naming_s: part of it spent on the arm that names stragglers, for which no published figure asks.
        passed: requirements that passed.
        host_bound: requirements that no number of rounds would decide.
        open: requirements that were undecided at the limit.
        failed: requirements that a sound node failed.
    """

    study: str
    rounds: int
    seconds: float
    naming_s: float
    passed: int
    host_bound: int
    open: int
    failed: int


def published_cluster(thresholds: Path, noise: float | None, *, everything: bool = False) -> SimulatedCluster:
    """The node, with the requirements that have published figures, or with everything."""
    options = ClusterOptions(SKU, gpus=8, noise=noise, workloads=None if everything else WORKLOADS)
    cluster = open_cluster(load_thresholds(thresholds), options)
    return replace(cluster, cases=tuple(case for case in cluster.cases if everything or is_published(case)))


def is_published(case: AnyCase) -> bool:
    """Whether the published matrix has a figure for it."""
    return case.requirement.metric in METRICS and case.requirement.source.measured is not None


def one_run(cluster: SimulatedCluster, seed: int, wrong: Sequence[str]) -> list[StudyTime]:
    """Measure and judge every study once, with faults as on the command line."""
    plan = cluster.plan(seed=seed)
    faults = parse_faults(wrong, plan.layout)
    decided = decide(SimulatedRun(plan, cluster.performance, faults, seed), cluster.cases, CONFIDENCE)
    return [study_time(cluster, study) for study in decided]


def study_time(cluster: SimulatedCluster, decided: DecidedStudy) -> StudyTime:
    """Machine time of a study that was decided after some rounds."""
    speeds = {name: expectation.samples_per_s for name, expectation in cluster.performance.expectations.items()}
    open_ = sum(verdict.is_open for verdict in decided.verdicts)
    passed = sum(verdict.passed for verdict in decided.verdicts)
    failed = sum(verdict.outcome == "failed" for verdict in decided.verdicts)
    study = decided.study
    seconds = warm_up_seconds(study, speeds) + sum(round_seconds(study, arms, speeds) for arms in decided.rounds)
    naming = [[arm for arm in arms if arm.kind == "each"] for arms in decided.rounds]
    return StudyTime(
        study=decided.study.id,
        rounds=len(decided.rounds),
        seconds=seconds,
        naming_s=sum(round_seconds(study, arms, speeds) for arms in naming),
        passed=passed,
        host_bound=len(decided.verdicts) - passed - failed - open_,
        open=open_,
        failed=failed,
    )


def summary(runs: Sequence[Sequence[StudyTime]], expected_minutes: float) -> dict[str, Any]:
    """The result: means of each study over the runs, and the whole."""
    totals = [STARTUP_S + sum(study.seconds for study in run) for run in runs]
    return {
        "runs": len(runs),
        "studies": [_mean(list(of_study)) for of_study in zip(*runs, strict=True)],
        "startup_s": STARTUP_S,
        "total_s": statistics.fmean(totals),
        "slowest_total_s": max(totals),
        "expected_s": expected_minutes * 60,
        "published_procedure_s": PUBLISHED_CONFIGURATIONS * PUBLISHED_S,
    }


def _mean(studies: Sequence[StudyTime]) -> dict[str, Any]:
    numbers = [asdict(study) for study in studies]
    names = [name for name in numbers[0] if name != "study"]
    return {"study": studies[0].study, **{name: statistics.fmean(n[name] for n in numbers) for name in names}}


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    columns = ("rounds", "minutes", "to name stragglers", "passed", "host-bound", "open", "failed")
    rows = [
        (
            study["study"], f"{study['rounds']:.1f}", _minutes(study["seconds"]), _minutes(study["naming_s"]),
            *(f"{study[name]:.1f}" for name in ("passed", "host_bound", "open", "failed")),
        )
        for study in result["studies"]
    ]  # fmt: skip
    rows += [("start-up", "", _minutes(result["startup_s"])), ("total", "", _minutes(result["total_s"]))]
    rows = [(*row, *[""] * (len(columns) + 1 - len(row))) for row in rows]
    print(table((f"mean of {result['runs']} simulated runs", *columns), rows))
    slowest = _minutes(result["slowest_total_s"])
    print(f"\nslowest run: {slowest} min; expected: at most {_minutes(result['expected_s'])} min")
    hours, ratio = result["published_procedure_s"] / 3600, result["published_procedure_s"] / result["total_s"]
    print(f"the published procedure: {hours:.1f} h, {ratio:.0f} times as long")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=20, help="simulated runs (%(default)s)")
    parser.add_argument("--thresholds", type=Path, default=packaged("thresholds.yaml"), metavar="FILE")
    parser.add_argument("--noise", type=float, help="relative standard deviation of a round (0.003)")
    parser.add_argument("--everything", action="store_true", help="all requirements on training, all workloads")
    parser.add_argument("--fault", action="append", default=[], metavar="KIND:ARGS", help="as of `ddpscale simulate`")
    arguments = parser.parse_args()
    cluster = published_cluster(arguments.thresholds, arguments.noise, everything=arguments.everything)
    expected_minutes = EXPECTED_OF_EVERYTHING_MINUTES if arguments.everything else EXPECTED_MINUTES
    runs = [one_run(cluster, seed, arguments.fault) for seed in range(arguments.runs)]
    result = summary(runs, expected_minutes)
    show(result)
    keep(arguments.json, "time_to_verdict", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
