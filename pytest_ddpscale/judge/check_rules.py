"""Node checks before launch: what they find in surveys of nodes and in NCCL's connections.

Each generator yields facts: where, the check, and a code with its arguments. What a rule reads and the driver does not
give is missing data, which no check passes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import astuple

from pytest_ddpscale.judge.coverage import gpu_errors_in, lost_places
from pytest_ddpscale.plan.hardware import has_kernels, is_named, why_untried
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.records import WITHOUT_OVERLAP
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu

# Place of the GPU, or the host; the check, or "" for all that read the same, but of `transport`, which has one; a code
# and its arguments. Codes of missing data begin with "no-", those of notes with "note-"; "looked" says how many GPUs
# were looked at; others are faults.
Facts: TypeAlias = Iterator[tuple[Any, ...]]
# Who decides whether a fault is certain, where most nodes or GPUs do not: see `Finding.kind`.
_BLAME = {"power-brake": "outside", "unclear": "unclear", "unmanaged-ports": "unclear"} | dict.fromkeys((
    "lost", "lost-needed", "lost-under-load", "lost-afterwards", "unmeasured", "ended-ranks", "prohibited", "throttled",
    "uncorrected", "page-pending", "row-failed", "row-pending", "new-uncorrected", "afterwards",
), "nobody")  # fmt: skip
# No rank can run there, whoever is to blame.
PREVENTING = ("few-gpus", "cuda-lacks", "old-driver", "lost-needed", "prohibited", "without-kernels")
# Faults of cooling, power supply or board; not idling, clocks that an administrator set, or `sw_power_cap`, which full
# load causes. `hw_slowdown` covers the two hardware reasons, and is all that older drivers report.
THROTTLE_FAULTS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_GIB = 2**30
_SEGMENT = 10 * 2**20  # of shared memory that NCCL makes for a connection
_MOST_PIDS = 2**22  # PID_MAX_LIMIT of Linux
_MAYBE = "maybe"  # a reading that hardware may lack
_COMPARED = ("topology", "driver", "cuda_driver", "cuda", "nccl", "torch", "python", "pytest_ddpscale", "kernel")
_FEWEST_TO_COMPARE = 3
_NETWORKS = ("NET/", "COLLNET/")
_FAST = ("InfiniBand", "EFA")  # link layers of networks for nothing but RDMA


class Finding(NamedTuple):
    """What a check finds on a GPU, or on a node if the place has only a host."""

    place: Place
    check: str
    why: Reason

    @property
    def kind(self) -> str:
        """Missing data, ``no``; a ``note``; ``looked``; else of a fault, who else decides whether it is certain.

        ``nodes``, ``gpus``: the expectation may be wrong if most do not meet it. ``nobody``: it is a fault regardless
        of others, such as a lost GPU. ``outside``: nobody is certain if most nodes have it, as the cause may be shared,
        such as the facility's power. ``unclear``: nodes differ, and it is unclear which of them is wrong.
        """
        first = self.why.code.partition("-")[0]
        if first in ("no", "note", "looked"):
            return first
        return _BLAME.get(self.why.code, "gpus" if self.gpu else "nodes")

    @property
    def gpu(self) -> str:
        """Name of the GPU; empty for a node."""
        return "" if self.place == Place(self.place.host) else self.place.label

    @property
    def reason(self) -> Reason:
        """What is found, and where."""
        return because("at", self.place.host, self.gpu, self.why)


def find_surveyed(evidence: Evidence, expected: NodeExpectation) -> Facts:
    """What surveys say, node by node."""
    is_cpu = expected.device_type == "cpu"
    for host, survey in evidence.surveys.items():
        wanted, versions = expected.gpus_per_node, survey.versions
        if survey.problem:
            yield host, "", "no-survey", survey.problem
            continue
        visible = [gpu for gpu in survey.gpus if gpu.is_visible]  # to ranks
        silent = sum(bool(gpu.problem) for gpu in visible)
        yield host, "", "looked", len(visible) - silent
        yield host, "gpus", "looked", silent
        free, least = survey.free_bytes.get("run_directory"), expected.free_disk_gib
        if free is None:
            yield host, "disk", "no-reading", "free space where the run is written"
        elif free < least * _GIB:
            yield host, "disk", "full", free / _GIB, least
        if is_cpu:
            if survey.cores is None:
                yield host, "gpus", "no-reading", "number of CPU cores"
            elif survey.cores < wanted:
                yield host, "gpus", "few-cores", survey.cores, wanted
            continue

        shared = survey.free_bytes.get("shared_memory", _SEGMENT)
        if shared < _SEGMENT:
            yield host, "disk", "shared-memory-full", shared / 2**20, _SEGMENT / 2**20
        # As many GPUs as requested. Counting the SKU's detects one missing from the driver's list even if the remaining
        # GPUs suffice for all ranks; a GPU withheld by a cgroup has no name.
        answer = [gpu for gpu in visible if not gpu.is_lost]  # CUDA does not list lost ones
        of_sku = sum(not gpu.name or is_named(gpu.name, expected.name_pattern or "^.*$") for gpu in survey.gpus)
        why_none = because("none-visible", survey.driver_problem, survey.has_driver, len(survey.gpus))
        if len(visible) < wanted:
            yield host, "gpus", "few-gpus", len(visible), wanted, why_none
        if of_sku < expected.gpus_installed:
            yield host, "gpus", "few-of-sku", of_sku, expected.gpus_installed
        for gpu in survey.gpus:
            if gpu.problem and not gpu.is_visible:
                yield host, "gpus", "note-unused", gpu.index, gpu.problem

        # Torch and its CUDA. It may use GPUs of an older driver with NVIDIA's cuda-compat.
        torch, cuda, driver = (versions.get(name) for name in ("torch", "cuda", "cuda_driver"))
        count, listed = survey.torch_gpus, sum(bool(gpu.uuid) for gpu in answer)
        # Within a major version a build runs on older drivers ("minor version compatibility" in NVIDIA's CUDA
        # Compatibility guide).
        majors = [(version or "").partition(".")[0] for version in (driver, cuda)]
        is_old = all(map(str.isdecimal, majors)) and int(majors[0]) < int(majors[1])
        if count is None and survey.cuda_problem:
            yield host, "gpus", "no-count", survey.cuda_problem
        elif count is not None and count < listed and not is_old:
            facts = count, listed, survey.cuda_problem, answer[0].name, versions.get("driver"), bool(expected.nvlinks)
            yield host, "gpus", "cuda-lacks" if count < wanted else "cuda-finds", *facts
        if is_old and not count:
            yield host, "kernels", "note-old-driver" if count is None else "old-driver", driver, torch, cuda
        checks = {check for check, *_ in _rules(expected, survey, SurveyedGpu(0, "", "", "", ""))} - {"gpus"}
        checks -= {"bf16"} - expected.precisions
        if survey.torch_problem:
            checks.remove("kernels")
            yield host, "kernels", "no-torch", survey.torch_problem
        elif not survey.arch_list:
            checks.remove("kernels")
            yield host, "kernels", "without-cuda" if torch is not None and cuda is None else "no-architectures", torch

        for check in () if visible else checks:
            yield host, check, "no-gpu", why_none
        for gpu in visible:
            place = gpu.on(host)
            if gpu.problem:
                yield place, "gpus", "lost-needed" if gpu.is_lost and len(answer) < wanted else "lost", gpu.problem
                for check in checks:
                    yield place, check, "no-answer", gpu.problem
                continue
            for fact in _on_gpu(expected, survey, gpu):
                yield place, *fact
    yield from _compared(evidence, _COMPARED[-4:] if is_cpu else _COMPARED)
    yield from () if is_cpu else _afterwards(evidence)


def _rules(expected: NodeExpectation, survey: Survey, gpu: SurveyedGpu) -> list[tuple[Any, ...]]:
    """The check, the reading, what it is compared with (nothing: it is not read), whether it deviates, and the code.

    A GPU that does not answer is not measured for any of these checks.
    """
    pattern, ids, sizes = expected.name_pattern, expected.pci_device_ids, expected.memory_gib
    is_on, gib, reached = gpu.ecc_enabled, (gpu.memory_bytes or 0) / _GIB, gpu.pcie_generation_max
    generation, lanes = expected.pcie_generation or 0, expected.pcie_width or 0
    is_slot = gpu.pcie_width_max is not None and gpu.pcie_width_max < lanes
    is_narrow = not is_slot and gpu.pcie_width is not None and gpu.pcie_width < lanes
    up, links, kernels = gpu.nvlinks_active, expected.nvlinks, () if survey.torch_problem else survey.arch_list
    is_spare = not up and len(survey.gpus) == max(expected.gpus_per_node, expected.gpus_installed) == 1
    major, minor = map(int, (gpu.compute_capability or "0.0").split("."))
    return [
        ("gpus", "name", pattern, not is_named(gpu.name, pattern or ""), "other-name"),
        ("gpus", "pci_device_id", ids, gpu.pci_device_id not in ids, "other-id"),
        ("gpus", "memory_bytes", sizes, not sizes or not sizes[0] <= gib <= sizes[1], "other-memory"),
        ("processes", "processes", True),
        ("mig", "mig_enabled", _MAYBE, gpu.mig_enabled, "mig-on"),
        ("throttling", "throttle_reasons", True),
        ("ecc", "ecc_enabled", expected.ecc is not None or _MAYBE, expected.ecc not in (None, is_on), "ecc-mode"),
        ("ecc", "ecc_uncorrected", is_on),
        # A GPU either retires pages (before Ampere) or remaps rows (since).
        ("ecc", "retired_pages_pending", is_on and gpu.remapped_rows is None and _MAYBE),
        ("ecc", "remapped_rows", is_on and _MAYBE),
        # What GPU and slot reach together: an idle GPU lowers generation and lanes to save power.
        ("pcie", "pcie_width_max", is_slot and lanes, True, "few-lanes-reached"),
        ("pcie", "pcie_width", not is_slot and lanes, is_narrow and (gpu.pcie_generation or 0) == reached, "few-lanes"),
        ("pcie", "pcie_generation", is_narrow),
        ("pcie", "pcie_generation_max", generation or is_narrow, (reached or 0) < generation, "old-pcie"),
        # A virtual machine with one GPU needs none.
        ("nvlink", "nvlinks_active", links or (up and links == 0 and "0"), up != links and not is_spare, "links"),
        ("kernels", "compute_capability", kernels, not has_kernels(kernels, (major, minor)), "without-kernels"),
        # Ampere; earlier GPUs emulate bf16.
        ("bf16", "compute_capability", "bf16" in expected.precisions, (major, minor) < (8, 0), "without-bf16"),
    ]  # fmt: skip


def _on_gpu(expected: NodeExpectation, survey: Survey, gpu: SurveyedGpu) -> Facts:
    """Checks of one GPU, without its place."""
    for check, reading, wanted, *deviation in _rules(expected, survey, gpu):
        # NVML gives all about NVLinks, or nothing.
        value, why = getattr(gpu, reading), gpu.unreadable.get(reading.removesuffix("_active"), "")
        if wanted and value in (None, ""):
            if wanted != _MAYBE or "not supported" not in why.lower():
                yield check, "no-reading", reading, why
        elif wanted and any(deviation[:1]):
            yield check, deviation[1], value, wanted
    if gpu.compute_mode == "Prohibited":
        yield "gpus", "prohibited", gpu.index
    for process in gpu.processes or ():
        is_little = gpu.memory_used_bytes is not None and gpu.memory_used_bytes < _GIB
        odd = "note-odd-process" if is_little else "no-process"
        yield "processes", "foreign-process" if 0 < process.pid < _MOST_PIDS else odd, *astuple(process)
    if slow := [reason for reason in gpu.throttle_reasons or () if reason in THROTTLE_FAULTS]:
        yield "throttling", *throttled(slow, gpu.temperature_c)
    if gpu.ecc_enabled:
        faults = {"note-corrected": gpu.ecc_corrected, **memory_faults(gpu)}
        faults["note-remapped"] = gpu.remapped_rows.uncorrectable if gpu.remapped_rows else None
        for code, count in faults.items():
            if count:
                yield "ecc", code, count
    if not expected.pcie_generation and not expected.pcie_width:
        yield "pcie", "no-expectation", "pcie_generation or pcie_width"
    if expected.nvlinks is None:
        yield "nvlink", "no-expectation", "nvlinks"


def throttled(reasons: Sequence[str], at_c: float | None, windows: Any = "") -> tuple[Any, ...]:
    """A fault without comparison, as code, reasons, temperature and when.

    Only a power brake without heat may come from outside. With the brake, NVML also sets ``hw_slowdown``.
    """
    listed = " ".join(reasons)
    is_from_outside = "power_brake" in listed and "thermal" not in listed
    return "power-brake" if is_from_outside else "throttled", tuple(reasons), at_c, windows


def memory_faults(gpu: SurveyedGpu) -> dict[str, int | None]:
    """Uncorrectable errors of a GPU's memory, and repairs that failed or wait for a reset, by code; None if unknown."""
    rows = gpu.remapped_rows
    return {
        "uncorrected": gpu.ecc_uncorrected,
        "page-pending": gpu.retired_pages_pending,
        "row-failed": None if rows is None else rows.failed,
        "row-pending": None if rows is None else rows.pending,
    }


def _compared(evidence: Evidence, names: Sequence[str]) -> Facts:
    """Versions and topology are those of most nodes."""
    known, first_with = surveyed(evidence), dict[str, str]()
    # Ranks do not communicate through the kernel, so another one is only noted.
    for name in names:
        check, by_host = "topology" if name == "topology" else "versions", dict[str, str]()
        for host, survey in known.items():
            version = survey.versions.get(name)
            if name == "topology":  # affinities and the legend do not count
                cells = survey.connections
                version = first_with.setdefault(str(cells), f"that of {host}") if cells else None
            if version:
                if name == "torch" and version not in by_host.values() and (why := why_untried(version)):
                    yield host, check, "note-untried", why
                by_host[host] = version
            elif name != "kernel":
                yield host, check, "no-reading", name, survey.torch_problem or survey.driver_problem
        counted = Counter(by_host.values())
        usual = max(counted, key=counted.__getitem__, default="")
        is_clear = 2 * counted[usual] > len(by_host)
        code = "note-kernel" if name == "kernel" else "differs" if is_clear else "unclear"
        facts = counted[usual], len(by_host), usual if is_clear else tuple(sorted(counted))
        for host, version in by_host.items():
            if version != usual or not is_clear:
                yield host, check, code, name, "differs" if name == "topology" else version, *facts
    others = {
        place.host for place, transport in evidence.transports.items() if transport.process_group == WITHOUT_OVERLAP
    }
    for host in others & known.keys():
        yield host, "versions", "note-backend"


def surveyed(evidence: Evidence) -> dict[str, Survey]:
    """Surveys by host, without those that failed."""
    return {host: survey for host, survey in evidence.surveys.items() if not survey.problem}


def _afterwards(evidence: Evidence) -> Facts:
    """GPUs lost since launch: by the sampler under load, after ranks failed, in rounds of its peers in which one was
    not measured, and by errors that ended its ranks."""
    losses = evidence.telemetry.of(evidence.telemetry.lost.where(bool))
    for row, why in enumerate(losses.lost):
        place = losses.place_of(row)
        survey = evidence.surveys.get(place.host)
        # Ignore a loss older than the survey: the node may have been repaired before the run was resumed.
        if survey is None or losses.ended_unix_s[row] >= survey.unix_s:
            yield place, "gpus", "lost-under-load", why
    last = {place: then for place, _, then in gpus_afterwards(evidence)}
    answer = {place.host for place, then in last.items() if then and not then.problem}
    for place, _, then in gpus_afterwards(evidence):
        now = last[place]
        if then is None or then.is_lost or (then.problem and now and now.problem and place.host in answer):
            yield place, "gpus", "lost-afterwards", then.problem if then else ""
        elif then.problem:  # as do all others of the node, or it answered later
            yield place, "gpus", "no-survey-afterwards", then.problem
    for place, rounds in lost_places(evidence).items():
        yield place, "gpus", "unmeasured", rounds
    for culprit in gpu_errors_in(evidence):
        yield culprit.place, "gpus", "ended-ranks" if culprit.is_certain else "note-suspect", culprit.because
    for after in evidence.post_mortems:
        if _is_silent(after):  # only a note if the node was slow, as it had little time to answer
            code = "note-slow" if after.problem and not after.driver_problem else "no-survey-afterwards"
            why = (after.problem, after.driver_problem, *(gpu.problem for gpu in after.gpus))
            yield after.host, "gpus", code, next(filter(None, why), "")


def gpus_afterwards(evidence: Evidence) -> Iterator[tuple[Place, SurveyedGpu, SurveyedGpu | None]]:
    """Each GPU that answered before launch, then, and after ranks failed; None if the driver no longer lists it.

    GPUs are found by UUID, those that no longer give one by index. Other GPUs than were surveyed, as in a later job
    step, say nothing about those.
    """
    for after in evidence.post_mortems:
        before = evidence.surveys.get(after.host)
        if before is None or _is_silent(after):
            continue
        listed = {gpu.uuid or gpu.index: gpu for gpu in after.gpus}
        others = {gpu.uuid for gpu in after.gpus} - {"", *(gpu.uuid for gpu in before.gpus)}
        # One that gave no UUID before may give it now.
        if len(others) <= sum(not gpu.uuid for gpu in before.gpus):
            for gpu in before.gpus:
                if gpu.is_visible and not gpu.problem:
                    yield gpu.on(after.host), gpu, listed.get(gpu.uuid) or listed.get(gpu.index)


def _is_silent(after: Survey) -> bool:
    """Whether nothing answers, which is no GPU's fault; that a GPU is lost is an answer."""
    problems = [gpu.problem and not gpu.is_lost for gpu in after.gpus if gpu.is_visible]
    return bool(after.problem or after.driver_problem) or not after.has_driver or (bool(problems) and all(problems))


def find_transports(evidence: Evidence, expected: NodeExpectation) -> Facts:
    """Ranks use the fastest available links.

    Between nodes: no TCP if any node has active InfiniBand or EFA, or RoCE that some rank uses, or if its InfiniBand
    waits for a subnet manager; GPUDirect RDMA if most other nodes have it; and as many active ports of InfiniBand or
    EFA as most other nodes. Within a node: NVLink or P2P if the SKU has NVLinks.
    """
    transports, known, wanted = evidence.transports, surveyed(evidence), expected.gpus_per_node
    is_one_node = not expected.crosses_nodes or evidence.plan.nodes <= 1
    ranks, between = Counter(place.host for place in transports), defaultdict[str, set[str]](set)
    for host, count in ranks.items():
        yield host, "looked", count
        if count < wanted:
            yield host, "no-logs", count, wanted
    for place, transport in transports.items():
        # A network connection to an unknown peer counts as one to another node.
        placed = Counter(transport.channels_within_node) + Counter(transport.channels_between_nodes)
        unclear = {name for name, n in transport.channels.items() if n > placed[name] and name.startswith(_NETWORKS)}
        between[place.host] |= {*transport.channels_between_nodes, *unclear}
        within = {*transport.channels_within_node, *(unclear if is_one_node else ())}
        # Through the host's memory, or out of the node.
        detours = sorted(name for name in within if name.startswith(("SHM", *_NETWORKS)))
        if is_one_node and ranks[place.host] == 1:
            continue  # without another rank NCCL may not even have begun its log
        if transport.problem or transport.unreadable:
            yield place, "no-log", transport.problem, transport.unreadable
        elif not transport.channels and not transport.nvls:
            yield place, "no-connections"
        elif expected.nvlinks and detours:
            yield place, "detour", tuple(detours)
    if is_one_node:
        return
    # An Ethernet port may belong to the management network; it counts as RoCE only if NCCL uses RDMA somewhere.
    uses_rdma = any(name.startswith("NET/IB") for transport in transports.values() for name in transport.channels)
    active, waiting = defaultdict[str, dict[str, bool]](dict), defaultdict[str, list[str]](list)
    for host, port in ((host, port) for host, node in known.items() for port in node.infiniband):
        name, state = f"{port.device}:{port.port} ({port.link_layer})", port.state.rpartition(":")[2].strip().upper()
        if state == "ACTIVE":  # ``4: ACTIVE``
            active[host][name] = port.link_layer in _FAST
        elif state == "INIT" and port.link_layer == "InfiniBand":
            waiting[host].append(name)  # linked up; a subnet manager, which Ethernet does not need, makes it active
    are_down = all(node.infiniband for node in known.values()) and not active and not waiting
    counts = {host: sum(active[host].values()) for host in known}
    fast = {host: tuple(one for one in active[host] if active[host][one] or uses_rdma) for host in known}
    # RDMA through the host's memory, and nodes of which some connection reaches the GPUs' memory.
    by_host = {
        host: tuple(sorted(name for name in used if name[:4] == "NET/" and not re.search("Socket|GDRDMA", name)))
        for host, used in between.items()
    }
    direct = {host for host, used in between.items() if any("GDRDMA" in name for name in used)}
    for host, used in between.items():
        survey, uses_tcp = known.get(host), any(name.startswith("NET/Socket") for name in used)
        if not any(between.values()):
            yield host, "no-nodes-joined"
            continue
        if by_host[host]:
            is_odd = host not in direct and 2 * sum(not by_host[one] for one in direct) > len(between) - 1
            code = "host-memory" if is_odd and len(between) >= _FEWEST_TO_COMPARE else "note-host-memory"
            yield host, code, by_host[host]
        if survey is None:  # other checks report that, too
            if uses_tcp:
                yield host, "no-ports"
            continue
        states = tuple(astuple(port)[:4] for port in survey.infiniband)
        if uses_tcp and waiting[host] and not fast[host]:
            yield host, "unmanaged-ports", tuple(waiting[host])
        elif uses_tcp and any(fast.values()):
            yield host, "tcp", fast[host], states
        elif uses_tcp and active[host]:
            yield host, "note-roce", tuple(active[host])
        elif uses_tcp and are_down:
            yield host, "note-ports-down", states
        # NCCL silently uses fewer ports than most others have.
        more, others = [count for count in counts.values() if count > counts[host]], len(counts) - 1
        if 2 * len(more) > others:
            code = "fewer-ports" if len(counts) >= _FEWEST_TO_COMPARE else "note-fewer-ports"
            yield host, code, counts[host], len(more), others, min(more), max(more), states
