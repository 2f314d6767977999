"""`peers:` of a thresholds file: by how much a place may be slower than its peers, and the requirements that follow.

They need no published value: whatever is beyond the limit is rejected and named. A file without `peers` has none of
these requirements. A row of the same metric and workload, in this file or one that it extends, replaces them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from pytest_ddpscale.plan.layout import Layout, WorldSize
from pytest_ddpscale.plan.metric_catalogue import NODE_UNIFORMITY, PROBE_UNIFORMITY, RANK_UNIFORMITY
from pytest_ddpscale.plan.operation import KINDS, operation
from pytest_ddpscale.thresholds.model import PeerLimits, Requirement, Source
from pytest_ddpscale.thresholds.parts import Strict

_PER_CENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) ?%")
_LEAST_PCT = 1.0  # noise and ordinary differences reach less
FEWEST_PLACES = 4
_REASON = "by its peers, no published value: more than {:g} % slower than the median of all others is rejected"


def _limit(value: Any) -> Any:
    if value is False or value == "off":  # YAML 1.1 reads a bare `off` as false
        return "off"
    matched = _PER_CENT.fullmatch(value) if isinstance(value, str) else None
    if matched is None or float(matched[1]) < _LEAST_PCT:
        raise PydanticCustomError("peer_limit", "per cent from 1 to 999, such as `5 %`, or `off`")
    return value


Limit = Annotated[
    str,
    BeforeValidator(_limit),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^{_PER_CENT.pattern}$"}, {"enum": ["off", False]}]}),
]


class PeersForm(Strict):
    """By how much a place may be slower than the median of its peers, whatever is published; or `off`."""

    computing: Limit | None = Field(None, description="GPUs of the run, each by its own forward passes.")
    nodes: Limit | None = Field(None, description="Nodes: the median of one's GPUs against the other nodes'.")
    memory: Limit | None = Field(None, description="Copies within the memory of a GPU.")
    host: Limit | None = Field(None, description="Copies from and to the host, by position on other nodes.")
    pairs: Limit | None = Field(None, description="Pairs of GPUs inside a node, by position on other nodes.")


def limits_of(forms: Sequence[PeersForm]) -> PeerLimits:
    """The limits of several forms, the nearest last: each limit is that of the nearest form that has it."""
    told = {name: value for form in forms for name, value in form.model_dump(exclude_none=True).items()}
    return PeerLimits(**{name: _fraction(value) for name, value in told.items()})


def _fraction(value: str) -> float | None:
    matched = _PER_CENT.fullmatch(value)
    return None if matched is None else float(matched[1]) / 100


def requirements_by_peers(
    limits: PeerLimits, requirements: Sequence[Requirement], where: Mapping[str, str]
) -> Iterator[Requirement]:
    """Uniformity of GPUs and nodes for each workload with weak scaling on a node, and of the places of each probe.

    Those that have a row are left out.

    Args:
        limits: of the SKU.
        requirements: its rows.
        where: ``file:line`` of each limit.
    """
    sizes: dict[str, list[WorldSize]] = {}
    for one in requirements:
        if _is_weak_on_a_node(one):
            sizes.setdefault(one.workload, []).append(one.world_size)
    has_row = {(one.metric, one.subject) for one in requirements}
    for workload, found in sizes.items():
        size = max((one for one in found if isinstance(one, int)), default=2) if "node" not in found else "node"
        for metric, name, limit in (
            (RANK_UNIFORMITY.name, "computing", limits.computing),
            (NODE_UNIFORMITY.name, "nodes", limits.nodes),
        ):
            if limit is not None and (metric, workload) not in has_row:
                yield _requirement(metric, limit, where[name], size, workload=workload)
    probed = dict.fromkeys((one.probe, one.world_size) for one in requirements if _is_probe_in_a_node(one))
    for probe, size in probed:
        name = KINDS[operation(probe).kind].peers
        limit = asdict(limits)[name]
        if limit is not None and (PROBE_UNIFORMITY.name, probe) not in has_row:
            yield _requirement(PROBE_UNIFORMITY.name, limit, where[name], size, probe=probe)


def _requirement(
    metric: str, limit: float, where: str, size: WorldSize, *, workload: str = "", probe: str = ""
) -> Requirement:
    source, bound = Source(reasoning=_REASON.format(100 * limit)), round(1 + limit, 6)
    return Requirement(
        metric, bound, source, workload=workload, probe=probe, world_size=size, provisional=True, where=where
    )


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
