"""Which faults the requirements of a thresholds file catch, by judging simulated runs like real ones.

    python benchmarks/power.py thresholds.yaml --gpu-sku a100 --gpus 8 --trials 20
    python benchmarks/power.py thresholds.yaml --gpu-sku b200 --gpus 16 --workloads resnet50-fp16 --faults slow-link:0.2

For authors of thresholds files. Every run simulates another node and puts one fault at a random place. Caught: a
requirement failed, was inconclusive or not measured. Rejected: a requirement that can reject failed. The row `none`
shows false alarms and false accusations. Brackets hold 95 % score intervals. No machine is measured.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from reporting import Share, argument_parser, keep, positive_int
from simulated_session import decide_all, of_cluster

from pytest_ddpscale.errors import BadInput, OptionError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ALL, FORMS, ClusterOptions, InjectedFault, parse_faults
from pytest_ddpscale.simulate.writing import host_name
from pytest_ddpscale.thresholds.loading import load_thresholds

DEFAULT_FAULTS = (
    "slow-gpu:1.02", "slow-gpu:1.05", "slow-gpu:1.1", "slow-gpu:1.2", "slow-link:0.5", "slow-link:0.25",
    "slow-link:0.05", "throttle:1.05", "throttle:1.2", "ramp:1.05", "step:1.05:8",
    "slow-gpu:all:1.02", "slow-gpu:all:1.1", "drift:5", "missing-rank", "corrupt-rank", "bad-gpu:ecc", "bad-gpu:lanes",
    "bad-gpu:nvlink", "bad-gpu:clock", "slow-probe:memory-copy:0.9", "slow-probe:memory-copy:0.7",
)  # fmt: skip
_HEADER = ("fault", "size", "caught", "rejected", "right one named", "mostly by")
_MOST_METRICS = 2
CONFIDENCE = 0.95


def main() -> None:
    """Simulate, judge and print."""
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("thresholds", type=Path, metavar="FILE")
    add("--gpu-sku", required=True, metavar="SKU", help="a name or alias in the file")
    add("--gpus", type=int, metavar="N", help="size of the cluster; default: that of the largest requirement")
    add("--workloads", type=_words, metavar="NAME,…", help="only these workloads; default: all")
    add("--faults", type=_words, default=DEFAULT_FAULTS, metavar="KIND:SIZE,…",
        help="default: a few sizes of every kind")  # fmt: skip
    add("--trials", type=positive_int, default=15, metavar="N", help="runs for each fault; default: %(default)s")
    add("--rounds", type=positive_int, metavar="N", help="rounds of every study; default: the most of a real run")
    add("--noise", type=float, metavar="SD", help="relative, of a round; default: 0.003 on GPU, 0.02 on CPU")
    add("--gpu-spread", type=float, default=0.0, metavar="SD", help="relative, between the GPUs of a node; default: 0")
    add("--correlation", type=float, default=0.0, metavar="R", help="between successive rounds (AR(1)); default: 0")
    add("--hiccups", type=float, default=0.0, metavar="SHARE",
        help="share of blocks that take up to 10 standard deviations longer; default: 0")  # fmt: skip
    add("--seed", type=int, default=0, metavar="S")
    arguments = parser.parse_args()
    try:
        found = _measured(arguments)
    except BadInput as error:
        parser.error(str(error))
    print("\n".join(power_lines(found)))
    set_aside = [verdict.id for verdict in found.set_aside]
    keep(arguments.json, "power", {"catches": [asdict(one) for one in found.catches], "set_aside": set_aside})


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _measured(arguments: argparse.Namespace) -> Power:
    options = ClusterOptions(
        gpu_sku=arguments.gpu_sku,
        gpus=arguments.gpus,
        noise=arguments.noise,
        workloads=arguments.workloads,
        gpu_spread=arguments.gpu_spread,
        correlation=arguments.correlation,
        hiccups=arguments.hiccups,
    )
    cluster = open_cluster(load_thresholds(arguments.thresholds), options)
    plan = cluster.plan(arguments.rounds, short_blocks=True)

    def progress(fault: str) -> None:
        print(f"simulating {fault} …", file=sys.stderr)

    return measure_power(cluster, plan, arguments.faults, arguments.trials, arguments.seed, progress)


@dataclass(frozen=True)
class Catch:
    """Result of one fault (``slow-gpu:1.05``; ``none`` without one) over all its trials.

    Attributes:
        fault: as written.
        caught: runs in which a requirement did not pass.
        rejected: runs in which a requirement that can reject failed.
        named: runs in which the right GPU or node was named; without a fault, runs in which any was.
        metrics: those that did not pass, the most frequent failure first.
    """

    fault: str
    caught: Share
    rejected: Share
    named: Share
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Power:
    """Faults that a thresholds file catches; the first catch is without a fault and shows false alarms.

    Requirements that a sound simulated machine misses in more than half of the runs are set aside and not counted.
    """

    catches: tuple[Catch, ...]
    set_aside: tuple[Verdict, ...]


def measure_power(
    cluster: SimulatedCluster,
    plan: Plan,
    faults: Sequence[str],
    trials: int,
    seed: int,
    progress: Callable[[str], None] = lambda fault: None,
) -> Power:
    """Simulate and judge `trials` runs without a fault and with each fault; the same seed gives the same shares.

    Faults are ``KIND:SIZE``; rank or node are drawn anew in every run. `progress` is called with each fault before its
    runs.

    Raises:
        OptionError: a fault is invalid.
    """
    for text in faults:
        place_fault(text, plan.layout, random.Random(seed))
    runs: dict[str, list[_Trial]] = {}
    for text in ("none", *dict.fromkeys(faults)):
        progress(text)
        runs[text] = [_trial(cluster, plan, text, f"{seed}/{text}/{number}") for number in range(trials)]
    set_aside = _never_kept(runs["none"])
    ignored = {verdict.id for verdict in set_aside}
    return Power(tuple(_catch(text, found, ignored) for text, found in runs.items()), set_aside)


def place_fault(text: str, layout: Layout, chance: random.Random) -> InjectedFault:
    """The fault ``KIND:SIZE`` at a random rank or node; ``KIND:all:SIZE`` affects all ranks.

    Raises:
        OptionError: unknown kind or invalid size.
    """
    kind, _, size = text.partition(":")
    if kind not in FORMS:
        raise OptionError("--faults", f"found {text!r}", f"KIND:SIZE such as {', '.join(DEFAULT_FAULTS)}")
    place = chance.randrange(layout.nodes if "NODE" in FORMS[kind] else layout.world_size)
    strikes_all = kind == "drift" or (f"|{ALL}" in FORMS[kind] and size.startswith(f"{ALL}:"))
    placed = [kind, *([] if strikes_all else [str(place)]), *([size] if size else [])]
    (fault,) = parse_faults([":".join(placed)], layout, where=f"--faults {text}")
    return fault


@dataclass(frozen=True)
class _Trial:
    """One simulated run, with its fault if it had one."""

    fault: InjectedFault | None
    layout: Layout
    verdicts: tuple[Verdict, ...]

    def not_passed(self, ignored: set[str]) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.passed and verdict.id not in ignored]

    def names_the_right_one(self, ignored: set[str]) -> bool:
        """Whether any requirement blames the faulty GPU or node; without a fault, whether any blames one."""
        blamed = [culprit for verdict in self.not_passed(ignored) for culprit in verdict.culprits]
        if self.fault is None or not self.fault.places:
            return bool(blamed)
        place = self.fault.places[0]
        if self.fault.is_of_node:
            return any(culprit.host == host_name(place) for culprit in blamed)
        node, index = divmod(place, self.layout.ranks_per_node)
        return any((culprit.host, culprit.place.index) == (host_name(node), index) for culprit in blamed)


def _trial(cluster: SimulatedCluster, plan: Plan, text: str, seed: str) -> _Trial:
    chance = random.Random(seed)
    fault = None if text == "none" else place_fault(text, plan.layout, chance)
    faults = (fault,) if fault else ()
    seed_of_run = chance.getrandbits(64)
    performance = of_cluster(cluster.performance, seed_of_run)
    run = SimulatedRun(plan, performance, faults, seed_of_run)
    return _Trial(fault, plan.layout, decide_all(run, cluster, CONFIDENCE))


def _never_kept(sound: Sequence[_Trial]) -> tuple[Verdict, ...]:
    missed = Counter(verdict.id for trial in sound for verdict in trial.verdicts if not verdict.passed)
    return tuple(v for v in sound[0].verdicts if 2 * missed[v.id] > len(sound))


def _catch(text: str, trials: Sequence[_Trial], ignored: set[str]) -> Catch:
    caught = [trial.not_passed(ignored) for trial in trials]
    rejected = [any(v.outcome == "failed" and v.severity == "fail" for v in verdicts) for verdicts in caught]
    named = sum(trial.names_the_right_one(ignored) for trial in trials)
    failed, not_passed = Counter[str](), Counter[str]()
    for verdicts in caught:
        failed.update({verdict.metric for verdict in verdicts if verdict.outcome == "failed"})
        not_passed.update({verdict.metric for verdict in verdicts})
    metrics = sorted(not_passed, key=lambda metric: (-failed[metric], -not_passed[metric], metric))
    runs = len(trials)
    return Catch(
        text, Share(sum(map(bool, caught)), runs), Share(sum(rejected), runs), Share(named, runs), tuple(metrics)
    )


def power_lines(power: Power) -> Iterator[str]:
    """The table and its legend."""
    rows = [_HEADER, *map(_row, power.catches)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield f"{power.catches[0].caught.runs} simulated runs of each: no machine was measured."
    for verdict in power.set_aside:
        yield f"Not counted, because a sound simulated machine does not meet it: {verdict.id}: {verdict.reason}"


def _row(catch: Catch) -> tuple[str, ...]:
    kind, _, size = catch.fault.partition(":")
    # A fault of all ranks has no culprit.
    named = "–" if kind == "drift" or size.startswith(f"{ALL}:") else str(catch.named)
    return kind, size, str(catch.caught), str(catch.rejected), named, ", ".join(catch.metrics[:_MOST_METRICS])


if __name__ == "__main__":
    main()
