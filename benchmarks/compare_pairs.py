"""How often `ddpscale compare` shows a difference between two simulated runs of one machine.

    python benchmarks/compare_pairs.py --pairs 25

Every pair is two runs of 8 A100s with other seeds, 16 rounds. Printed is, by kind of noise, how many requirements of
all pairs show no difference, and how many of the worst pair.
"""

from __future__ import annotations

import argparse
from typing import Any

from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.compare.comparing import compare_runs
from pytest_ddpscale.evidence.columns import columns_of
from pytest_ddpscale.evidence.evidence import evidence_of
from pytest_ddpscale.results.records import Block, gangs_by_number
from pytest_ddpscale.results.run_json import RunRecord
from pytest_ddpscale.results.verdicts import Judgement
from pytest_ddpscale.simulate.faults import parse_faults
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.spread import NodeSpread
from pytest_ddpscale.simulate.writing import records
from pytest_ddpscale.thresholds.cases import training_cases
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged
from pytest_ddpscale.verdict.judge import judge

CONFIDENCE, ROUNDS = 0.95, 16
WORKLOADS = ("resnet152-fp16", "vit-b-16-fp16")
NOISES: dict[str, dict[str, Any]] = {
    "independent rounds": {},
    "rounds correlated by 0.5": {"correlation": 0.5},
    "launches differ by 0.3 %": {"spread": NodeSpread(launch_sd=0.003)},
}


def simulated(cluster: SimulatedCluster, seed: int) -> ComparedRun:
    """One run, judged."""
    plan = cluster.plan(ROUNDS, short_blocks=True)
    found = list(records(SimulatedRun(plan, cluster.performance, parse_faults((), plan.layout), seed), cluster))
    blocks = (one for one in found if isinstance(one, Block))
    evidence = evidence_of(plan, columns_of(blocks, gangs_by_number(found).values()), found)
    verdicts = tuple(judge(case, evidence, CONFIDENCE) for case in training_cases(cluster.cases))
    record = RunRecord(sku=cluster.sku, status="simulated", started_at="2026-01-01T00:00:00+00:00", simulated=True)
    judgement = Judgement(cluster.sku, "incomplete", "simulated", verdicts, simulated=True)
    return ComparedRun(str(seed), record, evidence, judgement, {}, str(seed))


def main() -> None:
    """Print a line for each kind of noise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=25)
    pairs = parser.parse_args().pairs
    file = load_thresholds(packaged("thresholds.yaml"))
    for name, options in NOISES.items():
        cluster = open_cluster(file, ClusterOptions("a100", 8, workloads=WORKLOADS, **options))
        alike = []
        for pair in range(pairs):
            a, b = (simulated(cluster, 1000 + 2 * pair + one) for one in (0, 1))
            found = compare_runs(a, b, CONFIDENCE)
            alike.append([one.difference == "no difference shown" for one in found.requirements])
        same, count = sum(map(sum, alike)), sum(map(len, alike))
        print(f"{name}: {same} of {count} show none; worst pair {min(map(sum, alike))} of {len(alike[0])}")


if __name__ == "__main__":
    main()
