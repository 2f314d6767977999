"""Whether the intervals of forecasts hold for unseen sizes: of published tables, and of simulated clusters.

    python benchmarks/forecast.py
    python benchmarks/forecast.py --clusters 1000
    python benchmarks/forecast.py --clusters 1000 --launches 3

In each table of published_scaling.json every size from the third up that is at most twice the next smaller one is
forecast from all smaller sizes, except where these do not reach across nodes. The file has every table with four or
more sizes whose numbers the project has. Expected: at most one miss per table, and a median half-width of at most 5 %
of the value. Exit code 1 otherwise.

Simulated clusters differ in GPUs and their links, nodes, model, batch, noise, rounds and the correlation of rounds;
their times come from simulate/performance.py, whose buckets, overlap, rings and trees differ from every fitted form.
Half the largest measured size (left out), twice and four times that size are forecast, and compared with the values
that the same rounds measure there. Each of several launches has these rounds, and each of its sizes deviates by up to
0.5 % (1 sd) more.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.forecast.measured_sizes import MeasuredSize, ScalingSeries, mean_of_launches, round_errors
from pytest_ddpscale.forecast.scaling_model import Forecast, ScalingModel
from pytest_ddpscale.plan.study import Arm, Scaling, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.allreduce import LINK_LATENCY_S, NIC_LATENCY_S, Link, Topology
from pytest_ddpscale.simulate.performance import Noise, Performance, expected_maximum
from pytest_ddpscale.simulate.sound_machine import Expectation

MOST_MISSES, WIDEST_HALF = 1, 0.05
LAUNCH_SD = 0.005  # at most
NOISY = 0.005  # mean standard error of the sizes
# Images per second of one GPU, from a V100 to a B200, of the published and derived ones in thresholds.yaml.
MODELS = {"resnet50": (800, 5000), "resnet152": (460, 2500), "vit_b_16": (360, 2500)}


def main() -> int:
    """Print a line for each table, or the coverage of clusters. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clusters", type=int, default=0, help="number of clusters to simulate instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launches", type=int, default=1, help="launches of each cluster")
    arguments = parser.parse_args()
    if arguments.clusters:
        return clusters(arguments.clusters, arguments.seed, arguments.launches)
    return tables()


def half_width(found: Forecast) -> float:
    """Half the interval over the value."""
    assert found.interval is not None
    return (found.interval[1] - found.interval[0]) / 2 / found.img_per_s


def holds(found: Forecast, img_per_s: float) -> bool:
    """Whether the interval contains the value."""
    assert found.interval is not None
    return found.interval[0] <= img_per_s <= found.interval[1]


def tables() -> int:
    """Forecast published tables."""
    every: list[float] = []
    most, hits = 0, 0
    for table in json.loads(Path(__file__).with_name("published_scaling.json").read_text()):
        sizes = [MeasuredSize(int(gpus), rate) for gpus, rate in table["rates"].items()]
        halves, misses = [], 0
        for known in range(2, len(sizes)):
            truth = sizes[known]
            if truth.gpus > 2 * sizes[known - 1].gpus:
                continue
            series = ScalingSeries(table["scaling"], table["table"], table["per_node"], tuple(sizes[:known]))
            try:
                found = ScalingModel(series).forecast(truth.gpus)
            except OptionError:
                continue
            misses += not holds(found, truth.img_per_s)
            halves.append(half_width(found))
        hits += len(halves) - misses
        most, every = max(most, misses), every + halves
        print(f"{table['table']:32} {table['scaling']:6} n {len(halves)}, misses {misses}, "
              f"median half-width {statistics.median(halves):6.1%}")  # fmt: skip
    half = statistics.median(every)
    print(f"held {hits} of {len(every)}; median half-width {half:.1%}; most misses a table {most}")
    return int(most > MOST_MISSES or half > WIDEST_HALF)


def clusters(number: int, seed: int, launches: int = 1) -> int:
    """Forecast simulated clusters."""
    found: dict[tuple[Scaling, float], list[tuple[bool, float]]] = defaultdict(list)
    noisy: dict[bool, list[float]] = defaultdict(list)
    for index in range(number):
        series, truths = cluster(np.random.default_rng([seed, index]), launches)
        largest = series.sizes[-1].gpus
        for times, rate in truths.items():
            gpus = round(times * largest)
            others = tuple(one for one in series.sizes if one.gpus != gpus)
            forecast = ScalingModel(replace(series, sizes=others)).forecast(gpus)
            found[series.scaling, times].append((holds(forecast, rate), half_width(forecast)))
            if (series.scaling, times) == ("weak", 2):
                noisy[statistics.fmean(one.error or 0.0 for one in series.sizes) > NOISY].append(half_width(forecast))
    print(f"{'scaling':8} {'largest':>8} {'clusters':>9} {'held':>7} {'half-width: median':>19} {'90th':>7}")
    for (scaling, times), every in sorted(found.items(), reverse=True):
        halves = [half for _, half in every]
        held = statistics.fmean(hit for hit, _ in every)
        print(f"{scaling:8} {times:>7g}x {len(every):>9} {held:>7.1%} {statistics.median(halves):>19.1%} "
              f"{np.quantile(halves, 0.9):>7.1%}")  # fmt: skip
    for is_noisy, halves in sorted(noisy.items()):
        print(f"weak, 2x, standard errors {'above' if is_noisy else 'up to'} {NOISY:.1%}: {len(halves)} clusters, "
              f"median half-width {statistics.median(halves):.1%}")  # fmt: skip
    return 0


def cluster(chance: np.random.Generator, launches: int = 1) -> tuple[ScalingSeries, dict[float, float]]:
    """A cluster's measured series, and what it reaches at half, twice and four times its largest measured size."""
    scaling: Scaling = "weak" if chance.random() < 0.75 else "strong"
    per_node = int(chance.choice([4, 8]))
    largest = per_node * int(chance.choice([2, 4, 8]))
    model = str(chance.choice(list(MODELS)))
    rate = between(chance, *MODELS[model])
    batch = max(8, round(rate * between(chance, 0.05, 0.8)))  # images of so many seconds
    performance = Performance(
        "cuda",
        Topology(
            per_node,
            Link(LINK_LATENCY_S, 1e9 * between(chance, 15, 700)),
            Link(NIC_LATENCY_S, 1e9 * between(chance, 2, 45)),
        ),
        {model: Expectation(rate, {}, {}, None)},
        Noise(
            between(chance, 0.001, 0.05),
            correlation=float(chance.choice([0.0, 0.3, 0.5])),
            hiccup_share=0.05 * chance.random(),
        ),
    )
    gpu_sd, together = 0.01 * chance.random(), 0.03 * chance.random()
    rounds = int(chance.choice([8, 16, 32]))
    sizes = [1 << power for power in range(largest.bit_length() + 2)]
    workload = Workload(model, model, "fp16", batch)
    rate_of_gpu = {
        gpus: img_per_s(
            performance, Arm("ddp", gpus, batch if scaling == "weak" else max(1, batch * 8 // gpus)), workload, scaling,
            gpu_sd, together,
        ) for gpus in sizes
    }  # fmt: skip
    launch_sd = LAUNCH_SD * chance.random() if launches > 1 else 0.0
    found: list[list[MeasuredSize]] = []
    for _ in range(launches):
        logs = {}
        for gpus in sizes:
            noise = performance.noise.of_rounds.series(chance, rounds)[0]
            own = launch_sd * chance.standard_normal() if launches > 1 else 0.0
            logs[gpus] = dict(enumerate((math.log(rate_of_gpu[gpus]) + own - noise).tolist()))
        errors = round_errors({gpus: logs[gpus] for gpus in sizes if gpus <= largest})
        means = {gpus: gpus * math.exp(statistics.fmean(of_size.values())) for gpus, of_size in logs.items()}
        found.append([MeasuredSize(gpus, means[gpus], error=errors.get(gpus)) for gpus in sizes])
    measured = mean_of_launches([[one for one in of_launch if one.gpus <= largest] for of_launch in found])
    reached = {one.gpus: one.img_per_s for one in mean_of_launches(found)}
    return ScalingSeries(scaling, model, per_node, measured), {
        times: reached[round(times * largest)] for times in (0.5, 2, 4)
    }


def between(chance: np.random.Generator, low: float, high: float) -> float:
    """A random number between two limits, log-uniform."""
    return float(math.exp(chance.uniform(math.log(low), math.log(high))))


def img_per_s(
    performance: Performance, arm: Arm, workload: Workload, scaling: Scaling, gpu_sd: float, together: float
) -> float:
    """Images per second of one GPU of an arm, without noise of rounds.

    Args:
        performance: of the cluster.
        arm: of the study.
        workload: likewise.
        scaling: likewise.
        gpu_sd: relative standard deviation between GPUs, for the slowest of which all wait.
        together: relative loss of computation while NCCL's kernels share the GPU.
    """
    study = Study(scaling, workload, (arm,), 1, 1.0, 1.0)
    computation_s = performance.step_time(study, arm).computation_s
    if arm.world_size > 1:
        waited = expected_maximum(arm.world_size) * math.hypot(performance.noise.step_sd, gpu_sd)
        computation_s *= 1 + together + waited
    nodes = performance.topology.nodes(arm.world_size)
    exposed_s = performance.exposed_s(workload, arm.world_size, nodes, np.array(computation_s))
    return arm.batch_size / (computation_s + float(exposed_s))


if __name__ == "__main__":
    sys.exit(main())
