"""Whether plausible faults of five GPU models are rejected, on one node and on four: simulated, judged, and explained.

    nice -n 15 python benchmarks/plausible_faults.py --jobs 2 --json plausible_faults.json
    python benchmarks/plausible_faults.py --skus b200 --match memory --runs 2

One device at half speed (a GPU's computing, its memory, its path to the host, the link of a pair, its links in its
node, a port to other nodes), and all devices alike at 90 %. A run measures, stops and concludes as a session does; a
sound machine reaches what thresholds.yaml says or publishes, its GPUs differ by 1 %, and rounds by 0.3 %. Two faults
that a node reports are beside them: fewer PCIe lanes and an NVLink that is down. Prints Markdown.

* outcome: of the runs. "rejected" and "incomplete" are seen; a fault that is accepted is not.
* by: what failed and can reject in most of the runs, else what kept the run from being accepted, else what only warned.
* named: runs in which the place at fault is among the culprits; with its node or link, as the search among nodes finds.
* why not: of a fault that is not rejected, computed from the file: the nearest bound, and the bound that would reject.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from reporting import argument_parser, keep, positive_int
from simulated_session import conclude_with_links, of_cluster
from smallest_faults import SKUS, is_between_nodes

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.verdicts import ACCEPTING, Verdict
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.measuring import LANES_LEFT, SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.simulate.writing import host_name
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.util.packaged import packaged

NODES, PER_NODE, CONFIDENCE, GPU_SD = (1, 4), 8, 0.95, 0.01
HALF, ALIKE = 0.5, 0.9  # of a sound device's speed
# GB/s that a GPU has to other nodes: thresholds.yaml's pairs between nodes. Of the others eight GPUs share a port.
PORTS = {"a100-sxm4-80gb": 24.0, "h100": 46.0, "b200": 46.0}
_RESOLVED = 0.01  # of a bound: what a run tells apart
# A SKU without a rejecting published bound accepts nobody: no sign of a fault.
UNCALIBRATED, AS_SOUND = "no published bound covers all devices", "incomplete as any of this SKU"
SPEED = ("throughput_per_gpu", "generation_ratio", "model_flops_utilization", "step_time_p95", "matmul_tflops")


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        name: in the table.
        texts: as on the command line, ``{rank}`` and ``{other}``, its neighbour, for the place.
        share: of a sound device's speed that is left.
        metrics: that see it.
        crosses: whether it is seen between nodes only; None where both.
    """

    name: str
    texts: tuple[str, ...]
    share: float
    metrics: tuple[str, ...]
    crosses: bool = False

    @property
    def is_of_all(self) -> bool:
        """Whether all devices have it, so that nobody can be named."""
        return self.share == ALIKE


def _both_ways(rank: str, share: float) -> tuple[str, str]:
    return f"slow-probe:{rank}:host-to-device:{share}", f"slow-probe:{rank}:device-to-host:{share}"


BANDWIDTHS = ("busbw_gbps", "pair_bandwidth_gbps")
FAULTS = (
    Fault("sound", (), 1.0, ()),
    Fault("a GPU's computing", (f"slow-gpu:{{rank}}:{1 / HALF}",), HALF, SPEED),
    Fault("a GPU's memory", (f"slow-probe:{{rank}}:memory-copy:{HALF}",), HALF, ("memory_bandwidth_gbps",)),
    Fault("a GPU's host path", _both_ways("{rank}", HALF), HALF, ("host_bandwidth_gbps",)),
    Fault("a GPU's PCIe, a quarter of its lanes", ("bad-gpu:{rank}:lanes",), LANES_LEFT, ("host_bandwidth_gbps",)),
    Fault("an NVLink of a GPU, down", ("bad-gpu:{rank}:nvlink",), HALF, ()),
    Fault("the link of a pair", (f"slow-pair:{{rank}}:{{other}}:{HALF}",), HALF, ("pair_bandwidth_gbps",)),
    Fault("a GPU's links in its node", (f"slow-gpu-link:{{rank}}:{HALF}",), HALF, BANDWIDTHS),
    Fault("a port to other nodes", (f"slow-port:{{rank}}:{HALF}",), HALF, BANDWIDTHS, crosses=True),
    Fault("all computing", (f"slow-gpu:all:{1 / ALIKE:.4f}",), ALIKE, SPEED),
    Fault("all memories", (f"slow-probe:all:memory-copy:{ALIKE}",), ALIKE, ("memory_bandwidth_gbps",)),
    Fault("all host paths", _both_ways("all", ALIKE), ALIKE, ("host_bandwidth_gbps",)),
    Fault("all links in nodes", (f"slow-gpu-link:all:{ALIKE}",), ALIKE, BANDWIDTHS),
    Fault("all ports to other nodes", (f"slow-port:all:{ALIKE}",), ALIKE, BANDWIDTHS, crosses=True),
)  # fmt: skip


@dataclass(frozen=True)
class Ending:
    """How a run ended: accepted, rejected or incomplete, by which requirements, and whether the place was named.

    Attributes:
        warned: without those whose sound value is not known: the simulator then takes 5 % more than the bound.
        has_slow_link: whether the search among nodes names a node or link.
    """

    outcome: str
    failed: tuple[str, ...]
    warned: tuple[str, ...]
    reason: str
    has_slow_link: bool
    is_named: bool
    names_others: bool


@lru_cache(maxsize=4)
def _cluster(sku: str, nodes: int, path: Path) -> SimulatedCluster:
    options = ClusterOptions(
        sku,
        gpus=nodes * PER_NODE,
        noise=0.003,
        gpu_spread=GPU_SD,
        nic_gbps=PORTS.get(sku, 25.0),
    )
    return open_cluster(load_thresholds(path), options)


def measure(sku: str, nodes: int, path: Path, fault: Fault, number: int) -> Ending:
    """Simulate and judge the `number`-th run, with the fault at another place in each."""
    cluster = _cluster(sku, nodes, path)
    seed = int(
        np.random.SeedSequence([zlib.crc32(f"{sku}/{nodes}/{fault.name}".encode()), number]).generate_state(1)[0]
    )
    layout, plan = cluster.layout, cluster.plan(seed=seed, short_blocks=True)
    rank = (0, 3, layout.world_size - 2)[number % 3]
    ranks = [rank]
    if fault.crosses and sku not in PORTS and not fault.is_of_all:  # one port of eight GPUs
        ranks = list(range(rank // PER_NODE * PER_NODE, (rank // PER_NODE + 1) * PER_NODE))
    texts = [
        text.format(rank=one, other=one + 1) for text in fault.texts for one in ranks[: None if "{" in text else 1]
    ]
    run = SimulatedRun(plan, of_cluster(cluster.performance, seed), parse_faults(texts, layout), seed)
    outcome, reason, verdicts, links = conclude_with_links(run, cluster, CONFIDENCE)
    ended = "accepted" if outcome in ACCEPTING else "rejected" if outcome == "rejected" else "incomplete"
    ended = AS_SOUND if UNCALIBRATED in reason else ended
    named, others = _named(verdicts, rank, layout)
    named = named or any(host_name(rank // PER_NODE) in one.hosts for one in links)
    guessed = {case.id for case in cluster.cases if case.requirement.sound_value is None and is_bound(case.requirement)}
    of = {
        severity: tuple(v.id for v in verdicts if v.outcome == "failed" and v.severity == severity)
        for severity in ("fail", "warn")
    }
    of["warn"] = tuple(one for one in of["warn"] if one not in guessed)
    return Ending(ended, of["fail"], of["warn"], reason, bool(links), named, others and not fault.is_of_all)


def is_bound(one: Requirement) -> bool:
    """Whether it bounds a value that a sound machine reaches, in place of a comparison with peers."""
    return not (one.definition.compares_places or one.definition.reads_own_pace)


def _named(verdicts: Sequence[Verdict], rank: int, layout: Layout) -> tuple[bool, bool]:
    """Whether the place is among the culprits, and whether a healthy one certainly is."""
    host, index = host_name(rank // layout.ranks_per_node), rank % layout.ranks_per_node
    blamed = {c for v in verdicts if not v.passed for c in v.culprits}
    mine = any(host in c.hosts and c.place.index in (None, index) for c in blamed)
    mine = mine or any(c.host == host and index in [place.index for place in c.places] for c in blamed)
    healthy = any(c.is_certain and (c.host != host or c.place.index not in (None, index)) for c in blamed)
    return mine, healthy


@dataclass(frozen=True)
class Row:
    """Results of a fault on so many nodes of a SKU."""

    sku: str
    nodes: int
    fault: Fault
    endings: tuple[Ending, ...]

    def count(self, outcome: str) -> int:
        """Runs that ended so."""
        return sum(one.outcome == outcome for one in self.endings)

    @property
    def seen(self) -> str:
        """In a word: rejected, kept from being accepted, only warned of, or not seen; as in most of the runs."""
        runs = len(self.endings)
        if 2 * self.count("rejected") >= runs:
            return "rejected" if self.count("rejected") == runs else f"rejected in {self.count('rejected')} of {runs}"
        if 2 * sum(one.has_slow_link for one in self.endings) >= runs:
            return "not accepted, named"
        if 2 * self.count("incomplete") >= runs:
            return "not accepted"
        return "warns" if 2 * sum(bool(one.warned) for one in self.endings) >= runs else "**not seen**"

    def cells(self, file: ThresholdsFile) -> list[str]:
        """Of a line of the table."""
        runs = len(self.endings)
        counts = [
            f"{n} {outcome}"
            for outcome in ("rejected", "incomplete", AS_SOUND, "accepted")
            if (n := self.count(outcome))
        ]
        outcome = counts[0].partition(" ")[2] if len(counts) == 1 else ", ".join(counts)
        named = (
            "–" if self.fault.is_of_all or not self.fault.texts else f"{sum(e.is_named for e in self.endings)}/{runs}"
        )
        why = "" if self.count("rejected") == runs or not self.fault.texts else why_not(self, file)
        return [self.fault.name, str(self.nodes), outcome, self._by(), named, why]

    def _by(self) -> str:
        rejecting = Counter(name for one in self.endings for name in one.failed)
        warning = Counter(name for one in self.endings for name in one.warned)
        most = [name for name, count in rejecting.items() if 2 * count >= len(self.endings)]
        if most:
            return summary(most)
        if 2 * sum(one.has_slow_link for one in self.endings) >= len(self.endings):
            return "the search among nodes"
        if self.count("incomplete"):
            reason = next(one.reason for one in self.endings if one.outcome == "incomplete")
            return re.split(r" \(|\. ", reason.rpartition(", but ")[2])[0]
        most = [name for name, count in warning.items() if 2 * count >= len(self.endings)]
        return f"warns: {summary(most)}" if most else "nothing"


def summary(names: Sequence[str]) -> str:
    """``throughput_per_gpu (8), node_check[pcie]``: metrics with the number of their requirements, or the only one."""
    found = Counter(name.partition("[")[0] for name in names)
    one = {name.partition("[")[0]: name for name in names}
    return ", ".join(one[metric] if n == 1 else f"{metric} ({n})" for metric, n in found.most_common(4))


def why_not(row: Row, file: ThresholdsFile) -> str:
    """Why a fault is not rejected: the nearest bound that it does not reach, or that only warns."""
    layout, fault = Layout(row.nodes, PER_NODE), row.fault
    said = []
    lines = [one for one in file.thresholds.skus[row.sku].requirements if is_asked(one, fault, layout)]
    for severity, does in (("fail", "rejects"), ("warn", "warns")):
        known = [one for one in lines if one.severity == severity and one.smallest_fault is not None]
        if known:
            nearest = min(known, key=lambda one: one.smallest_fault or 0.0)
            said.append(
                f"{_name(nearest)} {does} from {100 * (nearest.smallest_fault or 0):.3g} %{_needed(nearest, fault)}"
            )
        elif not any(one.severity == severity for one in lines):
            said += ["no row can reject"] if severity == "fail" else []
        else:
            said.append(f"what a sound machine reaches is not known of the row that {does}")
    return "; ".join(said)


def _needed(one: Requirement, fault: Fault) -> str:
    """The bound that would see the fault, if it does not."""
    if one.sound_value is None or (one.smallest_fault or 0.0) < 1 - fault.share:
        return ""
    needed = one.sound_value / fault.share if one.definition.upper_bound else one.sound_value * fault.share
    if abs(needed / one.bound - 1) < _RESOLVED:
        return f" (bound {one.bound:.4g}: the fault lies on it)"
    return f" (bound {one.bound:.4g}; {needed:.4g} would see it)"


def is_asked(one: Requirement, fault: Fault, layout: Layout) -> bool:
    """Whether a requirement is measured there and could see the fault."""
    ranks = layout.ranks_in(one.world_size)
    if one.metric not in fault.metrics or ranks is None or ranks > layout.world_size:
        return False
    return one.metric not in BANDWIDTHS or (ranks > PER_NODE) == fault.crosses


def _name(one: Requirement) -> str:
    size = f"-{one.world_size}".replace(" ", "") if is_between_nodes(one) else ""
    return f"{one.metric}[{one.subject}{size}]"


def has_nvlinks(sku: str, file: ThresholdsFile) -> bool:
    """Whether GPUs of the SKU have NVLinks."""
    node = file.thresholds.skus[sku].node
    return bool(node and node.nvlinks)


def overview(rows: Sequence[Row]) -> Iterator[str]:
    """A table of all SKUs: what each fault comes to, in a word."""
    skus = list(dict.fromkeys(row.sku for row in rows))
    yield from (f"| half speed, or all at 90 % | nodes | {' | '.join(skus)} |", "| --- " * (len(skus) + 2) + "|")
    for name, nodes in dict.fromkeys((row.fault.name, row.nodes) for row in rows if row.fault.texts):
        seen = {row.sku: row.seen for row in rows if (row.fault.name, row.nodes) == (name, nodes)}
        yield f"| {name} | {nodes} | {' | '.join(seen.get(sku, '–') for sku in skus)} |"


def lines(rows: Sequence[Row], file: ThresholdsFile) -> Iterator[str]:
    """A table of all SKUs, then one for each."""
    yield from overview(rows)
    header = ("half speed, or all at 90 %", "nodes", "outcome", "by", "named", "why it is not rejected")
    for sku in dict.fromkeys(row.sku for row in rows):
        yield from ("", f"### {sku}", "", f"| {' | '.join(header)} |", "| --- " * len(header) + "|")
        yield from (f"| {' | '.join(row.cells(file))} |" for row in rows if row.sku == sku)


def main() -> int:
    """Run the script. Returns its exit code: 1 if a sound machine is rejected or a healthy GPU is accused."""
    parser = argument_parser(__doc__)
    parser.add_argument("--skus", nargs="+", default=SKUS, help="(%(default)s)")
    parser.add_argument(
        "--thresholds", type=Path, default=packaged("thresholds.yaml"), metavar="FILE", help="(packaged)"
    )
    parser.add_argument("--nodes", nargs="+", type=positive_int, default=NODES, help="of eight GPUs (%(default)s)")
    parser.add_argument("--match", default="", help="only faults whose name contains this regular expression")
    parser.add_argument("--runs", type=positive_int, default=6, help="of each fault (%(default)s)")
    parser.add_argument("--jobs", type=positive_int, default=1, help="processes (%(default)s)")
    arguments = parser.parse_args()
    file, rows = load_thresholds(arguments.thresholds), []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for sku in arguments.skus:
            for nodes, fault in ((n, f) for f in FAULTS for n in arguments.nodes if re.search(arguments.match, f.name)):
                if (fault.crosses and nodes == 1) or ("NVLink" in fault.name and not has_nvlinks(sku, file)):
                    continue
                runs = range(arguments.runs)
                same = [sku] * len(runs), [nodes] * len(runs), [arguments.thresholds] * len(runs), [fault] * len(runs)
                rows.append(Row(sku, nodes, fault, tuple(pool.map(measure, *same, runs))))
                print(f"{sku}: {' | '.join(rows[-1].cells(file))}", file=sys.stderr, flush=True)
    print("\n".join(lines(rows, file)))
    keep(arguments.json, "plausible_faults", {"rows": [asdict(row) for row in rows]})
    wrong = [row for row in rows if any(e.names_others for e in row.endings)]
    return int(bool(wrong) or any(row.count("rejected") for row in rows if not row.fault.texts))


if __name__ == "__main__":
    sys.exit(main())
