"""Checks of hosts: software and its support of the GPUs, how devices are connected and used, and disk space."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pytest_ddpscale.judge.findings import (
    Finding,
    Findings,
    NodeEvidence,
    NodeFault,
    each_node,
    fault,
    gpus_of,
    looked_at,
    note,
    summed,
    unknown,
    unread,
)
from pytest_ddpscale.plan.hardware import has_kernels, wheel_for, why_untried
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu, is_older_cuda
from pytest_ddpscale.run.transport_record import WHAT_IT_MAY_COST, WITHOUT_OVERLAP, RankTransport
from pytest_ddpscale.util.listing import first_few

_COMPARED: dict[DeviceType, tuple[str, ...]] = {
    "cpu": ("torch", "python", "pytest_ddpscale"),
    "cuda": ("driver", "cuda_driver", "cuda", "nccl", "torch", "python", "pytest_ddpscale"),
}
# A difference is only noted, because ranks do not communicate through it.
_NOTED = ("kernel",)
# By major version of CUDA; the oldest drivers are from table 3 of the CUDA Toolkit release notes.
_OLDEST_DRIVERS = {"11": "450", "12": "525", "13": "580"}
_WHEELS = {"11": "cu118", "12": "cu126 or cu128"}
# Ampere; earlier GPUs emulate bf16.
_BF16_CAPABILITY = (8, 0)
_DEVICE = re.compile(r"(GPU|NIC)\d+$")
_GIB = 2**30
_RUN_DIRECTORY = "run_directory"
_PLACES = {"shared_memory": "shared memory (/dev/shm)", "temporary": "the temporary folder"}
_TCP = "NET/Socket"
_RDMA = "NET/IB"  # by InfiniBand or RoCE
_INFINIBAND, _ETHERNET = "InfiniBand", "Ethernet"
_FEWEST_TO_COMPARE = 3
_NETWORKS = ("NET/", "COLLNET/")
_DETOURS = ("SHM", *_NETWORKS)  # through the host's memory, or out of the node


def versions(seen: NodeEvidence) -> Findings:
    """Driver, CUDA, NCCL, torch, Python and this package are the same on all nodes."""
    compared = _COMPARED[seen.expectation.device_type]
    found = {}
    for host, survey in seen.surveys.items():
        missing = ", ".join(name for name in compared if not survey.versions.get(name))
        reason = survey.torch_problem or survey.driver_problem
        none = unknown(f"no version of {missing}{f' ({reason})' if reason else ''}")
        found[host] = looked_at(survey) or (none if missing else Finding())
    known = {host: survey.versions for host, survey in seen.surveys.items() if not survey.problem}
    read = {
        name: {host: version for host, versions in known.items() if (version := versions.get(name))}
        for name in (*compared, *_NOTED)
    }
    first_with = {version: host for host, version in reversed(read["torch"].items())}
    for version, host in first_with.items():
        if why := why_untried(version):
            found[host] += note(why)
    for host, process_group in {place.host: one.process_group for place, one in seen.transports.items()}.items():
        if process_group == WITHOUT_OVERLAP and host in found:
            found[host] += note(f"torch communicates through {process_group}; {WHAT_IT_MAY_COST}")
    for name, by_host in read.items():
        for host, odd in _odd_ones(name, by_host).items():
            found[host] += note(odd.text) if name in _NOTED else Finding(faults=(odd,))
    return found


def _odd_ones(name: str, found: Mapping[str, str]) -> dict[str, NodeFault]:
    """Nodes that differ from the majority's version; without a majority all nodes, none of them certain."""
    counted = Counter(found.values())
    if len(counted) < 2:
        return {}
    common, count = counted.most_common(1)[0]
    if 2 * count > len(found):
        text = f"{name} {{}}; {count} of {len(found)} nodes have {common}"
        return {host: NodeFault(text.format(version)) for host, version in found.items() if version != common}
    have = ", ".join(sorted(counted))
    return {h: NodeFault(f"{name} {v}; nodes have {have}, no majority", is_certain=False) for h, v in found.items()}


@each_node
def kernels(_: NodeExpectation, survey: Survey) -> Iterator[Finding]:
    """The torch build runs on the driver and has kernels for the GPUs."""
    torch, architectures = survey.versions.get("torch"), survey.arch_list
    build = f"torch {torch or 'of unknown version'}"

    def judge(gpu: SurveyedGpu) -> Iterator[Finding]:
        capability = _capability(gpu)
        if capability is None:
            yield unread(gpu, "compute_capability")
        elif not has_kernels(architectures, capability):
            text = f"{build} has no kernels for compute capability {gpu.compute_capability}; it has "
            yield fault(f"{text}{' '.join(architectures)}; {wheel_for(capability)}", prevents_ranks=True)

    yield from _driver_for_torch(survey, build)
    if survey.torch_problem:
        yield unknown(f"torch facts cannot be read: {survey.torch_problem}")
    elif not architectures and torch is not None and survey.versions.get("cuda") is None:
        yield fault(f"{build} was built without CUDA")
    elif not architectures:
        yield unknown(f"{build} lists no architectures")
    else:
        yield from gpus_of(survey, judge)


def _capability(gpu: SurveyedGpu) -> tuple[int, int] | None:
    """Major and minor of ``9.0``; None if it is unread."""
    match = re.fullmatch(r"(\d+)\.(\d+)", gpu.compute_capability or "")
    return None if match is None else (int(match[1]), int(match[2]))


def _driver_for_torch(survey: Survey, build: str) -> Iterator[Finding]:
    """A driver of an older major version of CUDA than torch's, unless torch can use GPUs with NVIDIA's cuda-compat."""
    driver, built = survey.versions.get("cuda_driver"), survey.versions.get("cuda")
    if driver is None or built is None or not is_older_cuda(driver, built) or survey.torch_gpus:
        return
    oldest = _OLDEST_DRIVERS.get(built.partition(".")[0], f"for CUDA {built}")
    wheels = _WHEELS.get(driver.partition(".")[0])
    install = f"driver {oldest} or later" + (f", or a {wheels} wheel" if wheels else "")
    text = f"the driver supports CUDA {driver}, {build} needs {built}: {install}"
    yield note(text) if survey.torch_gpus is None else fault(text, prevents_ranks=True)


@each_node
def bf16(expectation: NodeExpectation, survey: Survey) -> Iterable[Finding]:
    """Native bf16, if a workload needs it."""

    def judge(gpu: SurveyedGpu) -> Iterator[Finding]:
        capability = _capability(gpu)
        if capability is None:
            yield unread(gpu, "compute_capability")
        elif capability < _BF16_CAPABILITY:
            yield fault(f"compute capability {gpu.compute_capability} has no native bf16; expected 8.0 or later")

    return gpus_of(survey, judge) if "bf16" in expectation.precisions else ()


def topology(seen: NodeEvidence) -> Findings:
    """Devices are connected as on most nodes; without a majority all nodes are at fault, none of them certain."""
    read = {host: connections(survey.topology) for host, survey in seen.surveys.items()}
    none = unknown("nvidia-smi topo -m printed no topology")
    found = {h: looked_at(survey) or (none if read[h] is None else Finding()) for h, survey in seen.surveys.items()}
    known = {host: frozenset(each.items()) for host, each in read.items() if each is not None}
    if len(set(known.values())) < 2:
        return found
    most, count = Counter(known.values()).most_common(1)[0]
    is_certain = 2 * count > len(known)
    for host, each in known.items():
        if each != most or not is_certain:
            odd = _differences(dict(each), dict(most))
            text = f"{odd}; {count} of {len(known)} nodes agree"
            found[host] += Finding(faults=(NodeFault(text, is_certain=is_certain),))
    return found


def connections(matrix: str) -> dict[tuple[str, str], str] | None:
    """The connection of each pair of devices: ``{("GPU0", "GPU1"): "NV12", ("GPU0", "NIC0"): "PXB"}``.

    Args:
        matrix: output of ``nvidia-smi topo -m``; CPU and NUMA affinities and the legend are ignored.

    Returns:
        Empty for a single device; None if there is no matrix.
    """
    rows = [line.split() for line in matrix.splitlines()]
    devices = next(([word for word in row if _DEVICE.match(word)] for row in rows if row), [])
    if not devices:
        return None
    return {
        (row[0], other): how
        for row in rows
        if row and row[0] in devices and len(row) > len(devices)
        for other, how in zip(devices, row[1:], strict=False)
        if row[0] != other
    }


def _differences(found: Mapping[tuple[str, str], str], usual: Mapping[tuple[str, str], str]) -> str:
    """``GPU0–GPU3 SYS instead of NV12, …``."""
    odd = [
        f"{'–'.join(pair)} {found.get(pair, 'missing')} instead of {usual.get(pair, 'nothing')}"
        for pair in sorted(found.keys() | usual.keys())
        if found.get(pair) != usual.get(pair) and pair[0] < pair[1]
    ]
    return first_few(odd) or "one of several"


@each_node
def disk(expectation: NodeExpectation, survey: Survey) -> Iterator[Finding]:
    """Free space where the run is written."""
    least = expectation.free_disk_gib
    for name, free_bytes in sorted(survey.free_bytes.items()):
        if free_bytes < least * _GIB and name != _RUN_DIRECTORY:
            yield note(f"{free_bytes / _GIB:.2f} GiB are free in {_PLACES.get(name, name)}")
    free = survey.free_bytes.get(_RUN_DIRECTORY)
    if free is None:
        yield unknown("free space where the run is written is unknown")
    elif free < least * _GIB:
        yield fault(f"{free / _GIB:.2f} GiB are free where the run is written; expected {least:g} GiB")


def transport(seen: NodeEvidence) -> Findings:
    """Ranks use the fastest available links.

    Between nodes: no TCP if any node has active InfiniBand, or RoCE that some rank uses; and as many active InfiniBand
    ports as most other nodes. Within a node: NVLink or P2P if the SKU has NVLinks.
    """
    nodes = _Transports(seen)
    return {host: summed(nodes.judge(host)) for host in nodes.ranks}


class _Transports:
    """Connections of the ranks of all nodes, and ports of the nodes; if nothing crosses nodes, each stands alone."""

    def __init__(self, seen: NodeEvidence) -> None:
        self.ranks: dict[str, dict[Place, RankTransport]] = {}
        for place, one in seen.transports.items():
            self.ranks.setdefault(place.host, {})[place] = one
        self._expectation, self._surveys = seen.expectation, seen.surveys
        self._is_one_node = not seen.expectation.crosses_nodes or seen.hosts_planned <= 1
        self._is_crossed = any(one.channels_between_nodes or _networks_of(one) for one in seen.transports.values())
        # An Ethernet port may belong to the management network; it counts as RoCE only if NCCL uses RDMA somewhere.
        uses_rdma = any(name.startswith(_RDMA) for one in seen.transports.values() for name in one.channels)
        self._fast = (_INFINIBAND, _ETHERNET) if uses_rdma else (_INFINIBAND,)
        self._has_fast_ports = any(_active_ports(survey, *self._fast) for survey in seen.surveys.values())
        known = {host: survey for host, survey in seen.surveys.items() if not survey.problem}
        self._infiniband = {host: len(_active_ports(survey, _INFINIBAND)) for host, survey in known.items()}
        self._infiniband_sorted = sorted(self._infiniband.values())

    def judge(self, host: str) -> Iterator[Finding]:
        """Judge one node."""
        ranks, asked = self.ranks[host], self._expectation.gpus_per_node or 1
        yield Finding(gpus=len(ranks))
        if len(ranks) < asked:
            yield unknown(f"NCCL logged connections of {len(ranks)} of {asked} ranks")
        for place, one in ranks.items():
            yield self._within_node(one, is_alone=len(ranks) == 1).at(place)
        if not self._is_one_node:
            yield from self._between_nodes(host)

    def _within_node(self, one: RankTransport, *, is_alone: bool) -> Finding:
        """Whether the connections of a rank are known, and those within its node; with one node those are all."""
        if self._is_one_node and is_alone:
            return Finding()  # without another rank NCCL may not even have begun its log
        if one.problem:
            return unknown(one.problem)
        if one.unreadable:
            return unknown(f"unknown line in NCCL's log: {one.unreadable[0]}")
        if not one.channels and not one.nvls:
            return unknown("NCCL did not connect it to any other rank")
        names = {*one.channels_within_node, *(_networks_of(one) if self._is_one_node else ())}
        detours = sorted(name for name in names if name.startswith(_DETOURS))
        if self._expectation.nvlinks and detours:
            return fault(f"reaches GPUs of its own node through {', '.join(detours)}; expected NVLink or P2P")
        return Finding()

    def _between_nodes(self, host: str) -> Iterator[Finding]:
        if not self._is_crossed:
            yield unknown("no rank communicated with another node")
            return
        # A network connection to an unknown peer counts as one to another node.
        used = {name for one in self.ranks[host].values() for name in (*one.channels_between_nodes, *_networks_of(one))}
        without_rdma = sorted(name for name in used if name.startswith(_RDMA) and "GDRDMA" not in name)
        if without_rdma:
            yield note(f"{', '.join(without_rdma)} goes through host memory: no GPUDirect RDMA")
        if any(name.startswith(_TCP) for name in used):
            yield self._tcp(host)
        yield self._ports(host)

    def _tcp(self, host: str) -> Finding:
        """Judge a node that uses TCP: a fault if it or another node has faster ports."""
        survey = self._surveys.get(host)
        if survey is None or survey.problem:
            return unknown("it uses TCP to other nodes, and its ports were not surveyed")
        if active := _active_ports(survey, *self._fast):
            are = "is" if len(active) == 1 else "are"
            return fault(f"uses TCP to other nodes although {', '.join(active)} {are} active")
        if self._has_fast_ports:
            return fault(f"uses TCP although other nodes have active InfiniBand or RoCE ports; here: {_states(survey)}")
        ethernet = _active_ports(survey, _ETHERNET)
        return note(f"uses TCP to other nodes; could {', '.join(ethernet)} do RoCE?") if ethernet else Finding()

    def _ports(self, host: str) -> Finding:
        """A fault if most other nodes have more active InfiniBand ports; NCCL silently uses fewer."""
        active, others = self._infiniband, len(self._infiniband) - 1
        if host not in active:
            return Finding()  # the missing survey is reported by other checks
        more = self._infiniband_sorted[bisect_right(self._infiniband_sorted, active[host]) :]
        if not more or 2 * len(more) <= others:
            return Finding()
        text = f"{active[host]} InfiniBand ports are active; {len(more)} of {others} other nodes have {more[0]}"
        text += f"{' or more' if more[-1] > more[0] else ''}; here: {_states(self._surveys[host])}"
        return fault(text) if len(active) >= _FEWEST_TO_COMPARE else note(text)


def _networks_of(one: RankTransport) -> list[str]:
    """Network connections of a rank to unknown peers."""
    return [name for name in one.channels_somewhere if name.startswith(_NETWORKS)]


def _states(survey: Survey) -> str:
    """``mlx5_0:1 is ACTIVE, mlx5_1:1 is DOWN``."""
    ports = ", ".join(f"{port.device}:{port.port} is {port.state}" for port in survey.infiniband)
    return ports or "it has none"


def _active_ports(survey: Survey, *link_layers: str) -> list[str]:
    """``mlx5_0:1 (InfiniBand)`` …"""
    return [
        f"{port.device}:{port.port} ({port.link_layer})"
        for port in survey.infiniband
        if port.link_layer in link_layers
        and port.state.rpartition(":")[2].strip().upper() == "ACTIVE"  # sysfs writes ``4: ACTIVE``
    ]
