"""The smallest fault that each row of a thresholds file sees, as Markdown: bound, sound value, fault, rejects or warns.

    python benchmarks/smallest_faults.py
    python benchmarks/smallest_faults.py h100 b200 --thresholds site.yaml --with-others

The first table has the nearest row of each group of metrics, the others each row of the file in a group; what a row
says of several names or world sizes is a range. The smallest fault is 1 - bound / sound value, where less is better
bound / sound value - 1: a device that has lost that much is on the bound, and a run decides what differs by its
interval, about 1 %. A sound value is `sound` of the row, else what is published; without either no fault is known.
Peers see what differs from its peers, whatever is published.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from reporting import argument_parser, keep

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.judge.peers import FEWEST_PEERS, FEWEST_PEERS_OF_FAR
from pytest_ddpscale.plan.operation import operation
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import PeerLimits, Requirement, Sku
from pytest_ddpscale.util.packaged import packaged

SKUS = ("v100-sxm2-16gb", "a100-sxm4-80gb", "h100", "b200", "rtx-pro-6000-server")
SMALL_BYTES = 2**28  # messages of DDP's buckets are smaller, those of published bandwidths larger
OTHER = "other"
HEADER = ("what", "of", "bound", "sound", "smallest fault", "severity", "line")
# Of peers: the places, those that are compared with each other, and whether a time or a bandwidth is.
PEERS = {
    "computing": ("a GPU's own forward passes", "GPUs"),
    "nodes": ("a node's median GPU", "nodes"),
    "memory": ("copies in a GPU's memory", "GPUs"),
    "host": ("copies from and to the host, at the same position", "nodes"),
    "pairs": ("pairs of GPUs in a node, at the same position", "nodes"),
}


def is_between_nodes(one: Requirement) -> bool:
    """Whether ranks of several nodes measure it together."""
    return isinstance(one.world_size, str) and one.world_size != "node"


def is_of_several(one: Requirement) -> bool:
    """Whether several GPUs measure it together."""
    return one.world_size != 1


def _collective(one: Requirement, *kinds: str) -> int | None:
    """Message bytes of a collective of these kinds inside a node; None of anything else."""
    if one.metric != "busbw_gbps" or is_between_nodes(one):
        return None
    found = operation(one.probe)
    return found.message_bytes if found.kind in kinds else None


SPEED = ("throughput_per_gpu", "generation_ratio", "inference_throughput", "step_time_p95", "model_flops_utilization")
# The first group that a requirement belongs to.
GROUPS: dict[str, Callable[[Requirement], object]] = {
    "training speed, one GPU": lambda one: one.metric in SPEED and not is_of_several(one),
    "training speed, several GPUs": lambda one: one.metric in SPEED and not is_between_nodes(one),
    "weak scaling": lambda one: one.metric == "weak_scaling_efficiency" and not is_between_nodes(one),
    "strong scaling": lambda one: one.metric.startswith("strong_scaling") and not is_between_nodes(one),
    "matmul": lambda one: one.metric == "matmul_tflops",
    "memory copy": lambda one: one.metric == "memory_bandwidth_gbps",
    "host copies, all GPUs at once": lambda one: one.metric == "host_bandwidth_gbps",
    "all-reduce, large": lambda one: (_collective(one, "all-reduce") or 0) > SMALL_BYTES,
    "all-reduce, small": lambda one: _collective(one, "all-reduce"),
    "all-gather, reduce-scatter": lambda one: _collective(one, "all-gather", "reduce-scatter"),
    "pairs in a node": lambda one: one.metric == "pair_bandwidth_gbps" and not is_between_nodes(one),
    "network": lambda one: one.metric in ("busbw_gbps", "pair_bandwidth_gbps"),
    "scaling between nodes": lambda one: one.metric.endswith("scaling_efficiency"),
    OTHER: lambda one: not (one.check or one.definition.reads_own_pace or one.definition.compares_places),
}


def group_of(one: Requirement) -> str | None:
    """The group of a requirement; None of node checks and of comparisons with peers."""
    return next((group for group, belongs in GROUPS.items() if belongs(one)), None)


def rows_of(sku: Sku, *, with_others: bool) -> Iterator[tuple[str, tuple[Requirement, ...]]]:
    """Requirements that a row of the file makes in a group, group by group, in the order of the file."""
    order = list(GROUPS) if with_others else [group for group in GROUPS if group != OTHER]
    placed = [(group_of(one), one) for one in sku.requirements]
    for group in order:
        mine = sorted((one for of, one in placed if of == group), key=_row_of)
        for _, theirs in groupby(mine, key=_row_of):
            yield group, tuple(theirs)


def _row_of(one: Requirement) -> tuple[int, str, str, str]:
    _, _, line = one.where.rpartition(":")
    return int(line or 0), one.where, one.metric, one.severity


def cells(group: str, row: Sequence[Requirement], sku: Sku) -> tuple[str, ...]:
    """A line of the table."""
    first = row[0]
    faults = [one.smallest_fault for one in row]
    known = [fault for fault in faults if fault is not None]
    more = " more" if first.definition.upper_bound else ""
    fault = f"{_range([100 * fault for fault in known], digits=2)} %{more}" if known else "not known"
    fault += ", of others not known" if 0 < len(known) < len(faults) else ""
    sounds = [one.sound_value for one in row if one.sound_value]
    unit = {"fraction": "", "x": "×"}.get(sku.unit_of(first), sku.unit_of(first))
    bound = f"{'≤' if first.definition.upper_bound else '≥'} {_range([one.bound for one in row])} {unit}".rstrip()
    severity = "rejects" if first.severity == "fail" else "warns"
    source = "" if first.source.measured is None else ", published"
    _, _, line = first.where.rpartition(":")
    what = group if group != OTHER else "other"
    named = first.metric if group in (OTHER, *list(GROUPS)[:4]) else ""
    return what, _subjects(row, named), bound, _range(sounds) if sounds else "–", fault, severity + source, line


def _subjects(row: Sequence[Requirement], metric: str) -> str:
    """``throughput_per_gpu: resnet152-fp16, vit-b-16-fp16; 2, 4, node``."""
    names = list(dict.fromkeys(one.subject + (f" over {one.versus}" if one.versus else "") for one in row))
    sizes = list(dict.fromkeys(str(one.world_size) for one in row))
    told = ", ".join(filter(None, names)) or "nodes"
    return (f"{metric}: " if metric else "") + told + (f"; {', '.join(sizes)}" if sizes != ["1"] else "")


def _range(numbers: Sequence[float], digits: int = 4) -> str:
    least, most = (f"{number:.{digits}g}" for number in (min(numbers), max(numbers)))
    return least if least == most else f"{least} … {most}"


def peer_cells(limits: PeerLimits) -> Iterator[tuple[str, ...]]:
    """Lines of what peers see."""
    for name, (what, among) in PEERS.items():
        limit = getattr(limits, name)
        if limit is None:
            yield f"peers: {name}", what, "off", "–", "–", "–", ""
            continue
        is_time = name in ("computing", "nodes")
        near, far = (
            f"{100 * by:g} % more time" if is_time else f"{100 * (1 - 1 / (1 + by)):.2g} %" for by in (limit, 2 * limit)
        )
        fault = f"{near}, from {FEWEST_PEERS + 1} {among}; {far} of {FEWEST_PEERS_OF_FAR + 1}"
        yield f"peers: {name}", what, f"≤ {1 + limit:g} ×", "1", fault, "rejects, names the place", ""


def markdown(name: str, sku: Sku, *, with_others: bool) -> Iterator[str]:
    """The table of a SKU."""
    yield from ("", f"### {name}", "", f"| {' | '.join(HEADER)} |", "| --- " * len(HEADER) + "|")
    before = ""
    for line in (
        *(cells(group, row, sku) for group, row in rows_of(sku, with_others=with_others)),
        *peer_cells(sku.peers),
    ):
        yield f"| {' | '.join(('' if line[0] == before else line[0], *line[1:]))} |"
        before = line[0]


def summary(skus: Mapping[str, Sku]) -> Iterator[str]:
    """A table of the nearest rows: a line for each group, a column for each SKU."""
    yield from ("", f"| what | {' | '.join(skus)} |", "| --- " * (len(skus) + 1) + "|")
    for group in GROUPS:
        if group != OTHER:
            nearest = [_nearest([one for one in sku.requirements if group_of(one) == group]) for sku in skus.values()]
            yield f"| {group} | {' | '.join(nearest)} |"


def _nearest(lines: Sequence[Requirement]) -> str:
    """``rejects 5 %``, and what only warns if that is nearer or nothing rejects."""
    told, before = list[str](), math.inf
    for severity, does in (("fail", "rejects"), ("warn", "warns")):
        mine = [one.smallest_fault for one in lines if one.severity == severity]
        nearest = min((fault for fault in mine if fault is not None), default=None)
        if nearest is not None and nearest < before - 0.005:
            told.append(f"{does} {_range([100 * nearest], digits=2)} %")
            before = nearest
        elif mine and not told:
            told.append(f"{does}, not known")
    return ", ".join(told) or "–"


def main() -> int:
    """Run the script. Returns its exit code: 1 if a row that can reject has no sound value."""
    parser = argument_parser(__doc__)
    parser.add_argument("skus", nargs="*", default=SKUS, metavar="SKU", help="names or aliases (%(default)s)")
    parser.add_argument(
        "--thresholds", type=Path, default=packaged("thresholds.yaml"), metavar="FILE", help="(packaged)"
    )
    parser.add_argument(
        "--with-others", action="store_true", help="rows on memory, energy, steadiness and overhead too"
    )
    arguments = parser.parse_args()
    try:
        file = load_thresholds(arguments.thresholds)
        skus = {name: file.thresholds.skus[name] for name in map(file.sku_name, arguments.skus)}
    except BadInput as error:
        parser.error(str(error))
    print("\n".join(summary(skus)))
    for name, sku in skus.items():
        print("\n".join(markdown(name, sku, with_others=arguments.with_others)))
    blind = [one for sku in skus.values() for one in sku.requirements if is_blind(one)]
    print(*(f"no sound value, but it rejects: {one} ({one.where})" for one in blind), sep="\n", file=sys.stderr, end="")
    found = {name: [_told(one) for one in sku.requirements if group_of(one)] for name, sku in skus.items()}
    keep(arguments.json, "smallest_faults", {"skus": found})
    return int(bool(blind))


def is_blind(one: Requirement) -> bool:
    """Whether a requirement can reject, and nobody says from which fault on."""
    return one.severity == "fail" and group_of(one) not in (None, OTHER) and one.smallest_fault is None


def _told(one: Requirement) -> dict[str, object]:
    return {
        "group": group_of(one), "metric": one.metric, "subject": one.subject, "world_size": one.world_size,
        "bound": one.bound, "sound": one.sound_value, "smallest_fault": one.smallest_fault, "severity": one.severity,
        "where": Path(one.where).name,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
