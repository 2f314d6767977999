"""Whether a slow GPU is found wherever it sits, by simulation of a whole 8x A100 node.

    python benchmarks/slow_places.py --json slow_places.json
    python benchmarks/slow_places.py --runs 4 --slower 3 --noise 0.6

Every requirement on training is judged on a simulated node that is as fast as published, but for one GPU that is some
per cent slower than the others. A run is `rejected` if a requirement that can reject fails, `incomplete` if none does
and one of them is undecided, else `accepted`. One row for each place of the slow GPU, size of the slowness and noise of
a round; first the sound node.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.simulate.faults import Faults, parse_faults
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.simulated_session import decide
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

SKU, WORKLOAD, GPUS = "a100-sxm4-80gb", "resnet152-fp16", 8
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Row:
    """What became of some runs.

    Attributes:
        noise: of a round, in per cent.
        slower: the slow GPU, in per cent; 0 for a sound node.
        place: its rank; None for a sound node.
        accepted: runs.
        incomplete: runs.
        rejected: runs.
        mean_rounds: of a study.
    """

    noise: float
    slower: float
    place: int | None
    accepted: int
    incomplete: int
    rejected: int
    mean_rounds: float


def measure(cluster: SimulatedCluster, noise: float, slower: float, place: int | None, runs: int) -> Row:
    """Simulate and judge some runs."""
    plan = cluster.plan(short_blocks=True)
    texts = () if place is None else (f"slow-gpu:{place}:{1 + slower / 100}",)
    faults: Faults = parse_faults(texts, plan.layout)
    found: Counter[str] = Counter()
    rounds = []
    for seed in range(runs):
        studies = decide(SimulatedRun(plan, cluster.performance, faults, seed), cluster.cases, CONFIDENCE)
        rounds += [len(study.rounds) for study in studies]
        outcomes = {verdict.outcome for study in studies for verdict in study.verdicts if verdict.severity == "fail"}
        found["rejected" if "failed" in outcomes else "accepted" if outcomes == {"passed"} else "incomplete"] += 1
    mean_rounds = sum(rounds) / len(rounds)
    return Row(noise, slower, place, found["accepted"], found["incomplete"], found["rejected"], mean_rounds)


def cluster_of(noise: float) -> SimulatedCluster:
    """The node, with so much noise a round, in per cent."""
    options = ClusterOptions(SKU, gpus=GPUS, round_noise=noise / 100, workloads=(WORKLOAD,))
    return open_cluster(load_thresholds(packaged("thresholds.yaml")), options)


def main() -> int:
    """Run it."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=20, help="simulated runs a row (%(default)s)")
    parser.add_argument("--slower", type=float, nargs="+", default=[1.0, 2.0, 3.0, 4.0, 6.0], help="per cent")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.3, 0.6], help="of a round, per cent")
    parser.add_argument("--places", type=int, nargs="+", default=list(range(GPUS)), help="ranks (all)")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for noise in arguments.noise:
        cluster = cluster_of(noise)
        rows.append(measure(cluster, noise, 0.0, None, arguments.runs))
        for slower in arguments.slower:
            rows += [measure(cluster, noise, slower, place, arguments.runs) for place in arguments.places]
    print(as_table(rows))
    keep(arguments.json, "slow_places", {"runs": arguments.runs, "rows": [asdict(row) for row in rows]})
    return 0


def as_table(rows: Sequence[Row]) -> str:
    """The rows as they are printed."""
    head = ("noise", "slower", "rank", "accepted", "incomplete", "rejected", "rounds")
    cells = [
        (
            f"{row.noise:g}%", f"{row.slower:g}%", "none" if row.place is None else str(row.place),
            str(row.accepted), str(row.incomplete), str(row.rejected), f"{row.mean_rounds:.1f}",
        )
        for row in rows
    ]  # fmt: skip
    return table(head, cells)


if __name__ == "__main__":
    sys.exit(main())
