"""The smallest fault that rows of a thresholds file see, for docs/evidence: a line a group, a column a SKU.

    python benchmarks/smallest_faults.py
    python benchmarks/smallest_faults.py h100 b200 --thresholds site.yaml

The nearest row of each group that rejects, and the nearest that warns if that is nearer. The smallest fault is
1 - bound / sound value, where less is better bound / sound value - 1: a device that has lost that much is on the bound,
and a run decides what differs by its interval, about 1 %. A sound value is `sound` of the row, else what is published;
without either no fault is known. Peers see what differs from its peers, whatever is published. Each row's own is
"smallest_fault" of `ddpscale thresholds show --format=json`. Exit code 1 if a row that can reject has no sound value.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from reporting import argument_parser, keep

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.plan.operation import operation
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.util.packaged import packaged

SKUS = ("v100-sxm2-16gb", "a100-sxm4-80gb", "h100", "b200", "rtx-pro-6000-server")
SMALL_BYTES = 2**28  # messages of DDP's buckets are smaller, those of published bandwidths larger
SPEED = "(throughput_per_gpu|generation_ratio|inference_throughput|step_time_p95|model_flops_utilization)"
# The first that matches "metric[ collective] where": `one` GPU, `some` of a node, or `between` nodes.
GROUPS = {
    "training speed, one GPU": f"{SPEED} one",
    "training speed, several GPUs": f"{SPEED} some",
    "weak scaling": "weak_scaling_efficiency (one|some)",
    "strong scaling": r"strong_scaling\w+ (one|some)",
    "matmul": "matmul_tflops ",
    "memory copy": "memory_bandwidth_gbps ",
    "host copies, all GPUs at once": "host_bandwidth_gbps ",
    "all-reduce, large": "busbw_gbps large all-reduce (one|some)",
    "all-reduce, small": "busbw_gbps small all-reduce (one|some)",
    "all-gather, reduce-scatter": r"busbw_gbps \w+ (all-gather|reduce-scatter) (one|some)",
    "pairs in a node": "pair_bandwidth_gbps (one|some)",
    "network": "(busbw|pair_bandwidth)_gbps ",
    "scaling between nodes": r"\w+scaling_efficiency ",
}


def group_of(one: Requirement) -> str | None:
    """The group of a requirement; None of node checks, of comparisons with peers, and of memory, energy and others."""
    is_between = isinstance(one.world_size, str) and one.world_size != "node"
    where = "between" if is_between else "one" if one.world_size == 1 else "some"
    name = one.metric
    if one.metric == "busbw_gbps":
        probe = operation(one.probe)
        name += f" {'large' if (probe.message_bytes or 0) > SMALL_BYTES else 'small'} {probe.kind}"
    return next((group for group, pattern in GROUPS.items() if re.match(pattern, f"{name} {where}")), None)


def nearest(rows: Sequence[Requirement]) -> str:
    """``rejects 5 %``, and what only warns if that is nearer or nothing rejects."""
    told, before = list[str](), math.inf
    for severity, does in (("fail", "rejects"), ("warn", "warns")):
        mine = [one.smallest_fault for one in rows if one.severity == severity]
        least = min((fault for fault in mine if fault is not None), default=None)
        if least is not None and least < before - 0.005:
            told.append(f"{does} {100 * least:.2g} %")
            before = least
        elif mine and not told:
            told.append(f"{does}, not known")
    return ", ".join(told) or "–"


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("skus", nargs="*", default=SKUS, metavar="SKU", help="names or aliases (%(default)s)")
    parser.add_argument(
        "--thresholds", type=Path, default=packaged("thresholds.yaml"), metavar="FILE", help="(packaged)"
    )
    given = parser.parse_args()
    try:
        file = load_thresholds(given.thresholds)
        skus = {name: file.thresholds.skus[name].requirements for name in map(file.sku_name, given.skus)}
    except BadInput as error:
        parser.error(str(error))
    of = {name: [(group_of(one), one) for one in rows] for name, rows in skus.items()}
    found = {group: [nearest([one for its, one in rows if its == group]) for rows in of.values()] for group in GROUPS}
    for cells in (("what", *skus), ["---"] * (len(skus) + 1), *((group, *row) for group, row in found.items())):
        print(f"| {' | '.join(cells)} |")
    placed = [one for rows in of.values() for group, one in rows if group]
    blind = [one for one in placed if one.severity == "fail" and one.smallest_fault is None]
    print(*(f"no sound value, but it rejects: {one} ({one.where})" for one in blind), sep="\n", file=sys.stderr, end="")
    keep(given.json, "smallest_faults", {"skus": list(skus), "groups": found})
    return int(bool(blind))


if __name__ == "__main__":
    sys.exit(main())
