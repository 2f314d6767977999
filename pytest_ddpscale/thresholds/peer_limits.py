"""`peers:` of a thresholds file: by how much a place may be slower than its peers, and the requirements that follow.

They need no published value: whatever is beyond the limit is rejected and named. A file without `peers` has none of
these requirements. A row of the same metric and workload, in this file or one that it extends, replaces them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from pytest_ddpscale.plan.layout import Layout, WorldSize
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_UNIFORMITY, PROBE_UNIFORMITY, RANK_UNIFORMITY
from pytest_ddpscale.plan.operation import KINDS, operation
from pytest_ddpscale.thresholds.model import PeerLimits, Requirement, Source
from pytest_ddpscale.thresholds.parts import Strict

_PER_CENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) ?%")
_LEAST_PCT = 1.0  # noise and ordinary differences reach less
FEWEST_PLACES = 4
BY_PEERS = (RANK_UNIFORMITY.name, NODE_UNIFORMITY.name, PROBE_UNIFORMITY.name)
_REASON = "by its peers, no published value: more than {:g} % slower than the median of all others is rejected"


def _limit(value: Any) -> Any:
    if value == "off":
        return value
    matched = _PER_CENT.fullmatch(value) if isinstance(value, str) else None
    if matched is None or float(matched[1]) < _LEAST_PCT:
        raise PydanticCustomError("peer_limit", "per cent from 1 to 999, such as `5 %`, or `off`")
    return value


Limit = Annotated[
    str,
    BeforeValidator(_limit),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^{_PER_CENT.pattern}$"}, {"const": "off"}]}),
]


class PeersForm(Strict):
    """By how much a place may be slower than the median of its peers, whatever is published; or `off`."""

    computing: Limit | None = Field(None, description="GPUs of the run, each by its own forward passes.")
    nodes: Limit | None = Field(None, description="Nodes: the median of one's GPUs against the other nodes'.")
    memory: Limit | None = Field(None, description="Copies within the memory of a GPU.")
    host: Limit | None = Field(None, description="Copies from and to the host, by position on other nodes.")
    pairs: Limit | None = Field(None, description="Pairs of GPUs inside a node, by position on other nodes.")


def limits_of(of_files: Iterable[PeersForm | None], of_sku: PeersForm | None) -> PeerLimits:
    """The limits of files, the nearest last, and of a SKU: each limit is that of the nearest form that has it."""
    told = dict[str, Any]()
    for form in (*of_files, of_sku):
        told |= form.model_dump(exclude_none=True) if form else {}
    matched = {name: _PER_CENT.fullmatch(value) for name, value in told.items()}
    return PeerLimits(**{name: float(found[1]) / 100 if found else None for name, found in matched.items()})


def requirements_by_peers(
    limits: PeerLimits, requirements: Sequence[Requirement], where: Callable[[str], str]
) -> Iterator[Requirement]:
    """Uniformity of GPUs and nodes for each workload with weak scaling on a node, and of the places of each probe.

    Those that have a row are left out.

    Args:
        limits: of the SKU.
        requirements: its rows.
        where: tells the ``file:line`` of a limit.
    """
    asked: dict[tuple[str, str, WorldSize], str] = {}  # metric, subject, world size: limit
    sizes: dict[str, list[WorldSize]] = {}
    for one in requirements:
        if _is_weak_on_a_node(one):
            sizes.setdefault(one.workload, []).append(one.world_size)
    for workload, found in sizes.items():
        size = max((one for one in found if isinstance(one, int)), default=2) if "node" not in found else "node"
        asked[RANK_UNIFORMITY.name, workload, size] = "computing"
        asked[NODE_UNIFORMITY.name, workload, size] = "nodes"
    for one in requirements:
        if _is_probe_in_a_node(one):
            asked[PROBE_UNIFORMITY.name, one.probe, one.world_size] = KINDS[operation(one.probe).kind].peers
    has_row = {(one.metric, one.subject) for one in requirements}
    for (metric, subject, size), name in asked.items():
        limit = getattr(limits, name)
        if limit is None or (metric, subject) in has_row:
            continue
        source = Source(reasoning=_REASON.format(100 * limit))
        about: dict[str, Any] = {METRICS[metric].subject: subject}
        yield Requirement(
            metric, round(1 + limit, 6), source, **about, world_size=size, provisional=True, where=where(name)
        )  # fmt: skip


def _is_probe_in_a_node(one: Requirement) -> bool:
    """Whether it is on a probe whose places have peers: links between nodes are compared otherwise."""
    if not one.probe or one.definition.compares_places or not KINDS[operation(one.probe).kind].peers:
        return False
    return one.world_size == "node" or isinstance(one.world_size, int)


def _is_weak_on_a_node(one: Requirement) -> bool:
    if one.definition.subject != "workload" or one.definition.scaling != "weak" or one.definition.measured != "ddp":
        return False
    is_on_a_node = one.world_size == "node" or (isinstance(one.world_size, int) and one.world_size > 1)
    return one.placement == "packed" and is_on_a_node and not one.definition.reads_own_pace


def has_peers(requirement: Requirement, ranks: int, layout: Layout) -> bool:
    """Whether there are enough places to compare: fewer could neither pass nor fail."""
    if requirement.definition.compares_places:
        kind = operation(requirement.probe)
        if KINDS[kind.kind].peers == "memory":
            return layout.world_size >= FEWEST_PLACES
        is_possible = kind.is_single_device or 2 <= ranks <= layout.ranks_per_node
        return is_possible and layout.nodes >= FEWEST_PLACES
    if not requirement.definition.reads_own_pace:
        return True
    places = layout.nodes if requirement.definition is NODE_UNIFORMITY else layout.nodes * ranks
    return places >= FEWEST_PLACES
