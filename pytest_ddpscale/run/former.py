"""What earlier versions wrote into a run directory, converted to today's form when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import name_with_size
from pytest_ddpscale.plan.study import PLAN_SCHEMA_VERSION
from pytest_ddpscale.run.block import Block, Unsupported, Value
from pytest_ddpscale.run.records import GangRecord, Ranks, Texts, WorkloadFlops
from pytest_ddpscale.run.run_json import JUDGED_NOTE, OPERATOR, SITE, TICKET
from pytest_ddpscale.run.strict_json import (
    Count,
    Positive,
    column,
    each,
    parse_strict_json,
    refuse_other_lengths,
    strict_json,
)

T = TypeVar("T")
Column = Value | tuple[Value, ...]
Numbers = float | tuple[float, ...]
Bandwidth = Annotated[float, Meta(gt=0, le=1e9)]
_READINGS = ("utilization", "energy_j", "peak_memory_bytes", "step_stdev_s", "skipped_steps", "single_sample")


class FurtherTurn(Block, frozen=True, eq=False, kw_only=True):
    """A turn of the line that has the turn before it too."""


def numbered(records: Iterable[T]) -> list[tuple[int, T]]:
    """Records with the numbers of their lines, counted from 1."""
    found = list(records)
    lines = accumulate(int(not isinstance(record, FurtherTurn)) for record in found)
    return list(zip(lines, found, strict=True))


class FormerFlops(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="workload_flops"):
    """`WorkloadFlops` of images."""

    study: str
    flops_per_image: float
    counter: str


class FormerBlock(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="block"):
    """A `Block` of training or forward passes."""

    study: str
    arm: str
    round: int
    gang: int
    batch_size: int
    steps: Column
    ranks: Ranks
    started_unix_s: Column
    block_s: Column
    step_s: bytes = b""
    waited_s: bytes = b""
    step_stdev_s: Column = None
    utilization: Column = None
    energy_j: Column = None
    peak_memory_bytes: Column = None
    skipped_steps: Column = 0
    parameters_checksum: str | None = None
    single_sample: bool = False


class FormerProbe(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="probe"):
    """The `Block` of a probe, in which a rank of a send-recv is once for each peer."""

    study: str
    probe: str
    world_size: int
    round: int
    gang: int
    iterations: int
    ranks: Ranks
    peers: Count | Ranks | None = None
    work: Numbers
    seconds: Numbers
    started_unix_s: Numbers
    is_correct: bool | tuple[bool, ...]

    def __post_init__(self) -> None:
        refuse_other_lengths(self, len(self.ranks), "peers", "work", "seconds", "started_unix_s", "is_correct")


class FormerUnsupported(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="probe_unsupported"):
    """`Unsupported`."""

    study: str
    probe: str
    gang: int
    ranks: Ranks
    reasons: str | Texts


class FormerPairs(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="pair"):
    """The `Block` of pairs of nodes: the bandwidth of their fastest all-reduce, in GB/s."""

    study: str
    round: int
    gang: int
    message_bytes: Positive
    iterations: Positive
    ranks: tuple[tuple[Count, Count], ...]
    busbw_gbps: Bandwidth | tuple[Bandwidth, ...]

    def __post_init__(self) -> None:
        refuse_other_lengths(self, len(self.ranks), "busbw_gbps")


FormerRecord = FormerFlops | FormerBlock | FormerProbe | FormerUnsupported | FormerPairs


def in_todays_form(former: FormerRecord, gang: GangRecord | None) -> list[Block | Unsupported | WorkloadFlops]:
    """The records of one line; all but the first are a `FurtherTurn`.

    Args:
        former: the line.
        gang: that measured it; None if none was announced.

    Raises:
        ValueError: the line contradicts itself, or names ranks that the gang does not have.
    """
    if isinstance(former, FormerFlops):
        flops = WorkloadFlops(study=former.study, flops_per_sample=former.flops_per_image, counter=former.counter)
        return [flops]
    if gang is None:
        raise ValueError(f"gang {former.gang} was not announced before")
    gang.refuse_without(int(np.max(former.ranks)))
    if isinstance(former, FormerUnsupported):
        return [Unsupported(**{"arm" if name == "probe" else name: said for name, said in _fields(former)})]
    if isinstance(former, FormerProbe):
        return [*_probed(former, gang)]
    return [_pairs(former) if isinstance(former, FormerPairs) else _block(former, gang)]


def _fields(former: Struct) -> list[tuple[str, Any]]:
    return [(name, getattr(former, name)) for name in former.__struct_fields__]


def _block(former: FormerBlock, gang: GangRecord) -> Block:
    readings = {name: getattr(former, name) for name in _READINGS}
    series = {name: getattr(former, name) for name in ("step_s", "waited_s")}
    return _converted(
        Block,
        study=former.study, arm=former.arm, round=former.round, gang=former.gang, ranks=former.ranks,
        groups=_groups(former.ranks, int(former.arm.partition("@")[2] or 1), gang), count=former.steps,
        work=former.batch_size, began_unix_s=former.started_unix_s, seconds=former.block_s,
        readings={name: said for name, said in readings.items() if said is not None and said is not False},
        series={name: said for name, said in series.items() if said}, digests=former.parameters_checksum,
    )  # fmt: skip


def _groups(ranks: Sequence[int], size: int, gang: GangRecord) -> int | tuple[int, ...]:
    """The node of each rank, or one group of all if no more ranks are there than work together."""
    if len(ranks) <= size:
        return 0
    nodes = {host: number for number, host in enumerate(dict.fromkeys(gang.hosts))}
    return tuple(nodes[gang.hosts[rank]] for rank in ranks)


def _probed(former: FormerProbe, gang: GangRecord) -> list[Block]:
    probe = Arm(former.probe, former.world_size)
    if (former.peers is None) != (probe.operation.kind != "send-recv"):
        there = "no peers" if former.peers is None else "peers"
        raise ValueError(f"{there}; expected peers for send-recv, none for other probes")
    count = len(former.ranks)
    common = {"study": former.study, "arm": probe.name, "round": former.round, "gang": former.gang}
    common |= {"count": former.iterations}
    columns = {"work": former.work, "seconds": former.seconds, "began_unix_s": former.started_unix_s}
    if former.peers is None:
        groups, readings = _groups(former.ranks, probe.world_size, gang), {"is_correct": former.is_correct}
        return [_converted(Block, **common, **columns, ranks=former.ranks, groups=groups, readings=readings)]
    peers = each(former.peers, count)
    gang.refuse_without(max(peers))
    for rank, peer in zip(former.ranks, peers, strict=True):
        if rank == peer:
            raise ValueError(f"rank {rank} is its own peer; expected another rank")
    turns, groups = _turns(former, count)
    columns |= {"ranks": former.ranks, "groups": groups}
    blocks = []
    for turn in range(max(turns) + 1):
        of_turn = [i for i, one in enumerate(turns) if one == turn]
        mine = {name: _some(said, of_turn) for name, said in columns.items()}
        kind, readings = FurtherTurn if turn else Block, {"is_correct": _some(former.is_correct, of_turn)}
        blocks.append(_converted(kind, **common, **mine, turn=turn, readings=readings))
    return blocks


def _turns(former: FormerProbe, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Turn and group of each entry: pairs begin in the order of their time, as soon as both ranks are free."""
    began, peers = each(former.started_unix_s, count), each(former.peers, count)
    ends: list[tuple[Any, ...]] = [tuple(sorted(pair)) for pair in zip(former.ranks, peers, strict=True)]
    first = {pair: when for when, pair in sorted(zip(began, ends, strict=True), reverse=True)}
    turn_of: dict[tuple[Any, ...], tuple[int, int]] = {}
    last: dict[Any, int] = {}
    groups: dict[int, int] = {}
    for one, other in sorted(first, key=lambda pair: (first[pair], pair)):
        turn = max(last.get(one, -1), last.get(other, -1)) + 1
        last[one] = last[other] = turn
        turn_of[one, other] = turn, groups.get(turn, 0)
        groups[turn] = groups.get(turn, 0) + 1
    turns, numbers = zip(*(turn_of[pair] for pair in ends), strict=True)
    return turns, numbers


def _some(said: Any, entries: Sequence[int]) -> Any:
    return tuple(said[i] for i in entries) if isinstance(said, tuple) else said


def _pairs(former: FormerPairs) -> Block:
    arm = Arm(name_with_size("all-reduce", former.message_bytes), 2).name
    of_pairs = each(former.busbw_gbps, len(former.ranks))
    seconds = [former.iterations * former.message_bytes / (gbps * 1e9) for gbps in of_pairs for _ in range(2)]
    return _converted(
        Block,
        study=former.study, arm=arm, round=former.round, gang=former.gang, count=former.iterations,
        ranks=tuple(rank for pair in former.ranks for rank in pair),
        groups=tuple(number for number in range(len(former.ranks)) for _ in range(2)),
        work=former.message_bytes, began_unix_s=0.0, seconds=column(seconds),
    )  # fmt: skip


def _converted(kind: type[Block], **fields: Any) -> Block:
    """A record whose fields are checked as if they had been read."""
    return msgspec.convert(fields, kind)


_IMAGE_OPTIONS = (
    "model", "image_size", "memory_format", "num_classes", "cudnn_benchmark", "classifier_hidden", "feature_weights",
)  # fmt: skip
_BASIS = {"judged_by": OPERATOR, "site": SITE, "ticket": TICKET}


def run_without_former(data: dict[str, Any]) -> None:
    """Turn operator, site and ticket in the content of a run.json into notes, and devices' numbers into local ranks."""
    _note(data, SITE, OPERATOR, TICKET)
    hosts = data.get("hosts")
    for host in hosts if isinstance(hosts, list) else []:
        devices = host.get("devices") if isinstance(host, dict) else None
        for device in devices if isinstance(devices, list) else []:
            if isinstance(device, dict) and "local_rank" not in device:
                _without_local_rank(device, "index", "uuid", "local_rank")
    resumed = data.get("resumed")
    for one in resumed if isinstance(resumed, list) else []:
        if isinstance(one, dict):
            _note(one, OPERATOR)


def _without_local_rank(device: dict[str, Any], index: str, uuid: str, local_rank: str) -> None:
    """Turn the number of a device, which was its local rank, into that; NVML's index was not recorded."""
    device[local_rank] = device.get(index)
    device[index] = device.get(index) if device.get(uuid) == "cpu" else None


def _note(data: dict[str, Any], *keys: str) -> None:
    if "noted" not in data:
        former = {key: data.pop(key) for key in keys if key in data}
        data |= {"noted": former} if former else {}


def plan_without_former(data: dict[str, Any]) -> None:
    """Give the content of a plan.json of version 5, whose workloads have no family, today's form."""
    if data["schema_version"] == PLAN_SCHEMA_VERSION:
        return
    data.pop("precision", None)
    data["schema_version"] = PLAN_SCHEMA_VERSION
    probes, pairs = data.get("probes"), data.get("pairs")
    if isinstance(probes, dict) and isinstance(probes.get("probes"), list):
        probes["arms"] = [_arm(one) for one in probes.pop("probes")]
    if isinstance(pairs, dict) and isinstance(pairs.get("message_bytes"), int):
        pairs["arms"] = [_arm({"name": name_with_size("all-reduce", pairs.pop("message_bytes")), "world_size": 2})]
    for key in ("studies", "training_runs"):
        parts = data.get(key)
        for one in parts if isinstance(parts, list) else []:
            flat = one.get("workload") if isinstance(one, dict) else None
            if isinstance(flat, dict):
                options = {name: flat.pop(name) for name in _IMAGE_OPTIONS if name in flat}
                flat["family"] = {**options, "kind": "image"}


def _arm(probe: Any) -> Any:
    """A probe of a former plan as an arm."""
    if not isinstance(probe, dict):
        return probe
    usual = parse_strict_json(strict_json(Arm("memory-copy")))
    return usual | {"kind" if name == "name" else name: said for name, said in probe.items()}


def judgement_without_former(data: dict[str, Any]) -> None:
    """Drop from the content of a verdicts.json what nothing reads any more, and name its notes as they are now."""
    data.pop("family_confidence", None)
    for name, value in (("not_selected_ratios", 0), ("unfinished", False), ("causes", [])):
        data.setdefault(name, value)
    blockers = data.get("blockers")
    for blocker in blockers if isinstance(blockers, list) else []:
        if isinstance(blocker, dict):
            blocker.setdefault("cause", "")
    coverage = data.get("coverage")
    nodes = coverage.get("nodes") if isinstance(coverage, dict) else None
    for node in nodes if isinstance(nodes, list) else []:
        gpus = node.get("gpus") if isinstance(node, dict) else None
        for gpu in gpus if isinstance(gpus, list) else []:
            if isinstance(gpu, dict) and "local_rank" not in gpu:
                _without_local_rank(gpu, "index", "uuid", "local_rank")
                gpu["pci_bus_id"] = ""
    basis = data.get("basis")
    if isinstance(basis, dict):
        data["basis"] = {JUDGED_NOTE + _BASIS[key] if key in _BASIS else key: said for key, said in basis.items()}
    verdicts = data.get("verdicts")
    for verdict in verdicts if isinstance(verdicts, list) else []:
        if isinstance(verdict, dict):
            verdict.pop("precision", None)
            verdict.setdefault("counts_with", "")  # every requirement was counted by itself
            culprits = verdict.get("culprits")
            for culprit in culprits if isinstance(culprits, list) else []:
                if isinstance(culprit, dict) and "local_rank" not in culprit:
                    _without_local_rank(culprit, "gpu_index", "gpu_uuid", "local_rank")
                    _without_local_rank(culprit, "peer_gpu_index", "peer_gpu_uuid", "peer_local_rank")
                    culprit["pci_bus_id"] = culprit["peer_pci_bus_id"] = None
            compared = verdict.get("compared")
            if isinstance(compared, dict):
                verdict["compared"] = {key.replace("img_per_s", "samples_per_s"): one for key, one in compared.items()}
