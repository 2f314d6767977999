"""How often `ddpscale compare` shows a difference between two simulated runs of one machine, and after a slowdown.

    python benchmarks/compare_pairs.py --pairs 25

Every pair is two runs of 8 A100s with different seeds, 16 rounds. For each kind of noise the script prints how many
requirements show no difference, over all pairs and in the worst pair. Then GPU 3 of the second run is 10 % slower. Of
the requirements that are worse by 1 % or more without noise, the script prints how many are shown to be worse, for
requirements on all GPUs and on fewer GPUs, which take turns, so the slow one is in some of the rounds only. Of those
that differ by less than 0.1 % it prints how many show no difference.
"""

from __future__ import annotations

import argparse
from typing import Any

from pytest_ddpscale.compare.comparing import ComparedRequirement, ComparedRun, compare_runs
from pytest_ddpscale.compare.value_change import NEGLIGIBLE_CHANGE
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.simulate.writing import records
from pytest_ddpscale.thresholds.cases import training_cases
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

CONFIDENCE, ROUNDS, GPUS = 0.95, 16, 8
NONE, SLOW, LEAST_LOSS = "no difference shown", "slow-gpu:3:1.1", 0.01
WORKLOADS = ("resnet152-fp16", "vit-b-16-fp16")
NOISES: dict[str, dict[str, Any]] = {
    "independent rounds": {},
    "rounds correlated by 0.5": {"correlation": 0.5},
    "launches differ by 0.3 %": {"launch_spread": 0.003},
}


def simulated(cluster: SimulatedCluster, seed: int, *faults: str) -> ComparedRun:
    """One run, judged."""
    plan = cluster.plan(ROUNDS, short_blocks=True)
    found = list(records(SimulatedRun(plan, cluster.performance, parse_faults(faults, plan.layout), seed), cluster))
    evidence = evidence_of(plan, None, found)
    verdicts = tuple(worded(judge(case, evidence, CONFIDENCE)) for case in training_cases(cluster.cases))
    record = RunRecord(sku=cluster.sku, status="simulated", started_at="2026-01-01T00:00:00+00:00", simulated=True)
    judgement = Judgement(cluster.sku, "incomplete", "simulated", verdicts, simulated=True)
    return ComparedRun(str(seed), record, evidence, judgement, {}, str(seed))


def compared(cluster: SimulatedCluster, pair: int, *faults: str) -> list[ComparedRequirement]:
    """Two runs, the second with the faults."""
    a, b = simulated(cluster, 1000 + 2 * pair), simulated(cluster, 1001 + 2 * pair, *faults)
    return list(compare_runs(a, b, CONFIDENCE).requirements)


def main() -> None:
    """Print two lines for each kind of noise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=25)
    pairs = parser.parse_args().pairs
    file = load_thresholds(packaged("thresholds.yaml"))
    quiet = open_cluster(file, ClusterOptions("a100", GPUS, workloads=WORKLOADS, noise=1e-6))
    truth = {one.a.id: one.change.size for one in compared(quiet, 0, SLOW) if one.change}
    for name, options in NOISES.items():
        cluster = open_cluster(file, ClusterOptions("a100", GPUS, workloads=WORKLOADS, **options))
        alike = [[one.difference == NONE for one in compared(cluster, pair)] for pair in range(pairs)]
        same, count = sum(map(sum, alike)), sum(map(len, alike))
        print(f"{name}: {same} of {count} show none; worst pair {min(map(sum, alike))} of {len(alike[0])}")
        slowed = [one for pair in range(pairs) for one in compared(cluster, pair, SLOW)]
        worse = [(one.a.world_size == GPUS, one.is_worse) for one in slowed if abs(truth[one.a.id]) >= LEAST_LOSS]
        of_all, of_fewer = ([told for is_of_all, told in worse if is_of_all is wanted] for wanted in (True, False))
        spared = [one.difference == NONE for one in slowed if abs(truth[one.a.id]) < NEGLIGIBLE_CHANGE]
        print(f"  {SLOW}: of all GPUs {sum(of_all)} of {len(of_all)} that are worse are shown to be, of fewer "
              f"{sum(of_fewer)} of {len(of_fewer)}; {sum(spared)} of {len(spared)} that are not show none")  # fmt: skip


if __name__ == "__main__":
    main()
