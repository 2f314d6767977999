"""Node checks before launch: what they find in surveys of nodes and in NCCL's connections.

Each generator yields what is found, with the check and the host. What a rule reads and the driver does not give is
missing data, which no check passes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from pytest_ddpscale.judge.coverage import gpu_errors_in, lost_places
from pytest_ddpscale.judge.devices import THROTTLE_FAULTS
from pytest_ddpscale.plan.hardware import has_kernels, is_named, wheel_for, why_untried
from pytest_ddpscale.plan.node_check import NODE_CHECKS, NodeExpectation
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import WHAT_IT_MAY_COST, WITHOUT_OVERLAP, RankTransport
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu, is_older_cuda


class Finding(NamedTuple):
    """What a check finds on a node.

    Attributes:
        kind: a deviation from the expectation, missing data, a note, or that the node was looked at.
        text: what was found, and what was expected.
        gpu: the GPU concerned; None for the whole node.
        blame: who else decides whether a fault is certain. ``peers``: the expectation may be wrong if most nodes or
            GPUs do not meet it. ``nobody``: it is a fault regardless of others, such as a lost GPU. ``outside``: nobody
            is certain if most nodes have it, as the cause may be shared, such as the facility's power. ``unclear``:
            nodes differ, and it is unclear which of them is wrong.
        prevents_ranks: whether no rank can run there, whoever is to blame.
        gpus: number of GPUs that were looked at.
    """

    kind: Literal["fault", "unknown", "note", "looked"]
    text: str = ""
    gpu: Place | None = None
    blame: Literal["peers", "nobody", "outside", "unclear"] = "peers"
    prevents_ranks: bool = False
    gpus: int = 0


OnHosts: TypeAlias = Iterator[tuple[str, Finding]]  # host and finding
OfChecks: TypeAlias = Iterator[tuple[str, str, Finding]]  # check, host and finding
fault, unknown, note = partial(Finding, "fault"), partial(Finding, "unknown"), partial(Finding, "note")
NOTHING_EXPECTED = "the SKU's `node:` does not set {}"
_GIB = 2**30
_OF_GPUS = ("processes", "mig", "ecc", "throttling", "pcie", "nvlink")
# Readings from the same NVML call share one key in `SurveyedGpu.unreadable`.
_READ_AS = {"nvlinks_active": "nvlinks"}
_COMPARED = ("torch", "python", "pytest_ddpscale")
_COMPARED_WITH_GPUS = ("driver", "cuda_driver", "cuda", "nccl", *_COMPARED)
# By major version of CUDA; the oldest drivers are from table 3 of the CUDA Toolkit release notes.
_OLDEST_DRIVERS = {"11": "450", "12": "525", "13": "580"}
_WHEELS = {"11": "cu118", "12": "cu126 or cu128"}
# Ampere; earlier GPUs emulate bf16.
_BF16_CAPABILITY = (8, 0)
_DEVICE = re.compile(r"(GPU|NIC)\d+$")
_FEWEST_TO_COMPARE = 3
_RDMA = "NET/IB"  # by InfiniBand or RoCE
_NETWORKS = ("NET/", "COLLNET/")
_DETOURS = ("SHM", *_NETWORKS)  # through the host's memory, or out of the node


def find_surveyed(evidence: Evidence, expected: NodeExpectation) -> OfChecks:
    """What surveys say, node by node."""
    checks = [name for name, check in NODE_CHECKS.items() if check.reads == "survey"]
    for host, survey in evidence.surveys.items():
        places = gpu_places(survey)
        answering = sum(not gpu.problem for gpu, _ in places)
        for check in checks:
            looked = Finding("looked", gpus=len(places) if check == "gpus" else answering)
            yield check, host, unknown(f"survey failed: {survey.problem}") if survey.problem else looked
        found = () if survey.problem else _on_node(expected, survey, places)
        yield from ((check, host, one) for check, one in found)
    is_cpu = expected.device_type == "cpu"
    yield from _compared(evidence, _COMPARED if is_cpu else _COMPARED_WITH_GPUS)
    yield from () if is_cpu else (("gpus", host, one) for host, one in _lost(evidence))


def gpu_places(survey: Survey) -> list[tuple[SurveyedGpu, Place]]:
    """The GPUs that ranks may use, by local rank; then those without one, such as a lost one, by index."""
    found = [(gpu, gpu.on(survey.host)) for gpu in survey.gpus if gpu.is_visible]
    return sorted(found, key=lambda one: (one[0].local_rank is None, one[0].local_rank or 0, one[0].index))


def _on_node(
    expected: NodeExpectation, survey: Survey, places: list[tuple[SurveyedGpu, Place]]
) -> Iterator[tuple[str, Finding]]:
    """Checks of one node by itself."""
    free, least = survey.free_bytes.get("run_directory"), expected.free_disk_gib
    if free is None:
        yield "disk", unknown("free space where the run is written is unknown")
    elif free < least * _GIB:
        yield "disk", fault(f"{free / _GIB:.2f} GiB are free where the run is written; expected {least:g} GiB")
    asked, versions = expected.gpus_per_node or 1, survey.versions
    if expected.device_type == "cpu":
        if survey.cores is None:
            yield "gpus", unknown("the number of CPU cores for ranks is unknown")
        elif survey.cores < asked:
            yield "gpus", fault(f"{survey.cores} CPU cores for {asked} ranks")
        return

    # As many GPUs as requested. Counting the SKU's detects one missing from the driver's list even if the remaining
    # GPUs suffice for all ranks; a GPU withheld by a cgroup has no name.
    answer = [gpu for gpu, _ in places if not gpu.is_lost]  # CUDA does not list lost ones
    pattern, installed = expected.name_pattern or "^.*$", expected.gpus_installed or 0
    of_sku = sum(not gpu.name or is_named(gpu.name, pattern) for gpu in survey.gpus)
    why_none = f"CUDA_VISIBLE_DEVICES hides all {len(survey.gpus)} GPUs" if survey.gpus else "the driver finds no GPU"
    if survey.driver_problem or not survey.has_driver:
        why_none = survey.driver_problem or "no NVIDIA driver is loaded"
    if len(places) < asked:
        text = f"{len(places)} GPUs are visible; expected {asked}{'' if places else f': {why_none}'}"
        yield "gpus", fault(text, prevents_ranks=True)
    if of_sku < installed:
        yield "gpus", fault(f"the driver has {of_sku} GPUs of this SKU; expected {installed}")
    for number, why in [(gpu.index, gpu.problem) for gpu in survey.gpus if gpu.problem and not gpu.is_visible]:
        yield "gpus", note(f"GPU {number} of the node, which ranks do not use, does not answer: {why}")

    # Torch and its CUDA. It may use GPUs of an older driver with NVIDIA's cuda-compat.
    torch, cuda, driver = (versions.get(name) for name in ("torch", "cuda", "cuda_driver"))
    count, listed = survey.torch_gpus, sum(bool(gpu.uuid) for gpu in answer)
    why = survey.cuda_problem.rpartition("set an error? ")[2]  # after torch's guess at the cause
    build, is_old = f"torch {torch or 'of unknown version'}", is_older_cuda(driver, cuda)
    if count is None and why:
        yield "gpus", unknown(f"CUDA did not count its GPUs: {why}")
    elif count is not None and count < listed and not is_old:
        cure = "look for Xid in dmesg"
        if "Error 802" in why and any("GB200" in gpu.name or "GB300" in gpu.name for gpu in survey.gpus):
            cure = "check nvidia-imex and the NVLink switch trays"
        elif "Error 802" in why and expected.nvlinks:
            cure = f"start nvidia-fabricmanager {versions.get('driver')}, the driver's version"
        said = f" ({why})" if why else ""
        text = f"CUDA finds {count} of the {listed} GPUs that ranks may use{said}: {cure}"
        yield "gpus", fault(text, prevents_ranks=count < asked)
    if is_old and driver and cuda and not count:
        oldest = _OLDEST_DRIVERS.get(cuda.partition(".")[0], f"for CUDA {cuda}")
        wheels = _WHEELS.get(driver.partition(".")[0])
        install = f"driver {oldest} or later" + (f", or a {wheels} wheel" if wheels else "")
        text = f"the driver supports CUDA {driver}, {build} needs {cuda}: {install}"
        yield "kernels", note(text) if count is None else fault(text, prevents_ranks=True)
    checks = {*_OF_GPUS, *(["bf16"] if "bf16" in expected.precisions else [])}
    if survey.torch_problem:
        yield "kernels", unknown(f"torch facts cannot be read: {survey.torch_problem}")
    elif survey.arch_list:
        checks.add("kernels")
    elif torch is not None and cuda is None:
        yield "kernels", fault(f"{build} was built without CUDA")
    else:
        yield "kernels", unknown(f"{build} lists no architectures")

    for check in () if places else checks:
        yield check, unknown(f"no GPU is visible ({why_none})")
    for gpu, place in places:
        if gpu.problem:
            prevents = gpu.is_lost and len(answer) < asked
            yield "gpus", fault(f"lost: {gpu.problem}", place, "nobody", prevents)
            yield from ((check, unknown(f"{place.label} does not answer: {gpu.problem}")) for check in checks)
        else:
            found = ((check, one) for check, one in _on_gpu(expected, survey, gpu) if check in {"gpus", *checks})
            yield from ((check, one._replace(gpu=place)) for check, one in found)


def _on_gpu(expected: NodeExpectation, survey: Survey, gpu: SurveyedGpu) -> Iterator[tuple[str, Finding]]:
    """Checks of one GPU."""
    missing: dict[tuple[str, str], Finding] = {}

    def read(check: str, name: str, *, may_lack: bool = False, like: str = "") -> Any:
        """A reading; if it is None, or an empty text, it is missing data unless the hardware may lack it."""
        value = getattr(gpu, name)
        if value in (None, "") or (like and not re.fullmatch(like, value)):
            value = None
            reason = gpu.unreadable.get(name) or gpu.unreadable.get(_READ_AS.get(name, ""), "")
            if not (may_lack and "not supported" in reason.lower()):
                text = f"{name} cannot be read ({reason or 'the driver gives no reason'})"
                missing[check, name] = unknown(text)
        return value

    # The SKU's model, as far as it says which, and open to processes. In an exclusive mode one process at a time may
    # use it: that is enough, as each GPU has one rank, gangs run one after another, and NVML and NCCL's peer-to-peer
    # access need no second process with a context on it.
    pattern, ids, (least, most) = expected.name_pattern, expected.pci_device_ids, expected.memory_gib or (0, 0)
    differences, memory = [], read("gpus", "memory_bytes") if most else None
    if pattern is not None and read("gpus", "name") and not is_named(gpu.name, pattern):
        differences.append(f"is a {gpu.name}; expected a name like {pattern}")
    if ids and read("gpus", "pci_device_id") not in (None, *ids):
        differences.append(f"has PCI device id {gpu.pci_device_id}; expected {' or '.join(ids)}")
    if memory is not None and not least <= memory / _GIB <= most:
        differences.append(f"has {memory / _GIB:.1f} GiB; expected {least:.1f} to {most:.1f}")
    if differences:
        yield "gpus", fault(", ".join(differences))
    if gpu.compute_mode == "Prohibited":
        text = f"compute mode Prohibited; nvidia-smi -i {gpu.index} -c 0"
        yield "gpus", fault(text, blame="nobody", prevents_ranks=True)

    for process in read("processes", "processes") or ():
        held = "unknown memory" if process.memory_bytes is None else f"{process.memory_bytes / _GIB:.1f} GiB"
        name = process.name or "name not visible"
        yield "processes", fault(f"foreign process {process.pid} ({name}) holds {held}")
    if read("mig", "mig_enabled", may_lack=True):
        yield "mig", fault("MIG is enabled; expected the whole GPU")
    if slow := [one for one in read("throttling", "throttle_reasons") or () if one in THROTTLE_FAULTS]:
        yield "throttling", throttled(slow, "" if gpu.temperature_c is None else f" at {gpu.temperature_c} °C")

    is_on = read("ecc", "ecc_enabled", may_lack=expected.ecc is None)
    if is_on is not None and expected.ecc not in (None, is_on):
        yield "ecc", fault("ECC is off; expected on" if expected.ecc else "ECC is on; expected off")
    if is_on:
        if count := read("ecc", "ecc_uncorrected"):
            text = f"{count} uncorrectable memory errors since the driver was loaded"
            yield "ecc", fault(text, blame="nobody")
        if gpu.ecc_corrected:
            yield "ecc", note(f"{gpu.ecc_corrected} corrected memory errors since the driver was loaded")
        # A GPU either retires pages (before Ampere) or remaps rows (since); it does not support the other.
        if gpu.remapped_rows is None:
            read("ecc", "retired_pages_pending", may_lack=True)
        rows = read("ecc", "remapped_rows", may_lack=True)
        yield from (("ecc", fault(text, blame="nobody")) for text, is_so in repairs(gpu).items() if is_so)
        if rows and rows.uncorrectable:
            yield "ecc", note(f"{rows.uncorrectable} memory rows were remapped for uncorrectable errors")

    # What GPU and slot reach together: an idle GPU lowers generation and lanes to save power.
    generation, lanes = expected.pcie_generation, expected.pcie_width
    if generation is None and lanes is None:
        yield "pcie", unknown(NOTHING_EXPECTED.format("pcie_generation or pcie_width"))
    reached = None if generation is None else read("pcie", "pcie_generation_max")
    if reached is not None and reached < generation:
        own = "" if gpu.pcie_generation_gpu_max is None else f" (the GPU alone: {gpu.pcie_generation_gpu_max})"
        yield "pcie", fault(f"PCIe of GPU and slot reaches generation {reached}{own}; expected {generation}")
    if lanes is not None and gpu.pcie_width_max is not None and gpu.pcie_width_max < lanes:
        yield "pcie", fault(f"PCIe of GPU and slot reaches {gpu.pcie_width_max} lanes; expected {lanes}")
    elif lanes is not None and (width := read("pcie", "pcie_width")) is not None and width < lanes:
        now, reached = read("pcie", "pcie_generation"), read("pcie", "pcie_generation_max")
        if now is not None and now == reached:  # else it may be saving power
            yield "pcie", fault(f"PCIe has {width} lanes; expected {lanes}")

    links = expected.nvlinks
    up = read("nvlink", "nvlinks_active") if links else gpu.nvlinks_active
    is_alone = len(survey.gpus) == max(expected.gpus_per_node or 1, expected.gpus_installed or 1) == 1
    if links is None:
        yield "nvlink", unknown(NOTHING_EXPECTED.format("nvlinks"))
    elif up not in (None, links) and (up or not is_alone):  # a virtual machine with one GPU needs none
        yield "nvlink", fault(f"{up} NVLinks are up; expected {links}")

    for check in ("kernels", "bf16"):
        capability = read(check, "compute_capability", like=r"\d+\.\d+")
        if capability is None:
            continue
        major, minor = map(int, capability.split("."))
        if check == "bf16" and (major, minor) < _BF16_CAPABILITY:
            yield check, fault(f"compute capability {capability} has no native bf16; expected 8.0 or later")
        elif check == "kernels" and not has_kernels(survey.arch_list, (major, minor)):
            built, wheel = " ".join(survey.arch_list), wheel_for((major, minor))
            text = f"torch has no kernels for compute capability {capability}; it has {built}; {wheel}"
            yield check, fault(text, prevents_ranks=True)
    yield from ((check, one) for (check, _), one in missing.items())


def throttled(reasons: Collection[str], where: str = "") -> Finding:
    """A fault without comparison; only a power brake without heat may come from the facility.

    With the brake, NVML also sets ``hw_slowdown``.
    """
    listed = ", ".join(reasons)
    is_from_outside = "power_brake" in listed and "thermal" not in listed
    return fault(f"clocks are throttled{where}: {listed}", blame="outside" if is_from_outside else "nobody")


def repairs(gpu: SurveyedGpu) -> dict[str, bool | None]:
    """Repairs of a GPU's memory that failed or wait for a reset: whether it is so, None if unknown."""
    rows = gpu.remapped_rows
    return {
        "a memory page waits to be retired": gpu.retired_pages_pending,
        "a faulty memory row could not be remapped": None if rows is None else rows.failed,
        "a memory row waits to be remapped": None if rows is None else rows.pending,
    }


def _compared(evidence: Evidence, versions: Sequence[str]) -> OfChecks:
    """Versions and topology are those of most nodes."""
    known, like, first_with = _surveyed(evidence), dict[str, str](), dict[str, str]()
    for host, survey in known.items():
        reason = survey.torch_problem or survey.driver_problem
        if missing := [name for name in versions if not survey.versions.get(name)]:
            yield "versions", host, unknown(f"no version of {', '.join(missing)}{reason and f' ({reason})'}")
        # Affinities and the legend do not count.
        rows = [words for line in survey.topology.splitlines() if (words := line.split())] or [[]]
        devices = [word for word in rows[0] if _DEVICE.match(word)]
        cells = str([row[: len(devices) + 1] for row in rows[1:] if row[0] in devices])
        if devices:
            like[host] = f"that of {first_with.setdefault(cells, host)}"
        else:
            yield "topology", host, unknown("nvidia-smi topo -m printed no topology")
    # Ranks do not communicate through the kernel, so another one is only noted.
    for name in (*versions, "kernel"):
        read = {host: version for host, survey in known.items() if (version := survey.versions.get(name))}
        for host, odd in _odd_ones(f"{name} {{}}", read):
            yield "versions", host, note(odd.text) if name == "kernel" else odd
    yield from (("topology", host, odd) for host, odd in _odd_ones("topology differs", like))
    torch = {survey.versions.get("torch"): host for host, survey in reversed(known.items())}
    for version, host in torch.items():
        if version and (why := why_untried(version)):
            yield "versions", host, note(why)
    groups = {place.host: one.process_group for place, one in evidence.transports.items()}
    for host in [host for host, group in groups.items() if group == WITHOUT_OVERLAP and host in evidence.surveys]:
        yield "versions", host, note(f"torch communicates through {WITHOUT_OVERLAP}; {WHAT_IT_MAY_COST}")


def _surveyed(evidence: Evidence) -> dict[str, Survey]:
    return {host: survey for host, survey in evidence.surveys.items() if not survey.problem}


def _odd_ones(text: str, found: Mapping[str, str]) -> OnHosts:
    """Nodes that differ from most, with what each has in `text`; without a majority all, none of them certain."""
    counted = Counter(found.values())
    (usual, count), *_ = [*counted.most_common(1), ("", 0)]
    is_certain = 2 * count > len(found)
    have = f"{count} of {len(found)} nodes have {usual}"
    if not is_certain:
        have = f"nodes have {', '.join(sorted(counted))}, no majority"
    for host, one in found.items():
        if one != usual or not is_certain:
            yield host, fault(f"{text.format(one)}; {have}", blame="peers" if is_certain else "unclear")


def _lost(evidence: Evidence) -> OnHosts:
    """Each GPU lost since launch, once even if found several times: by the sampler under load, after ranks failed, in
    rounds of its peers in which it was not measured, and by errors that ended its ranks."""
    found, lost = list[tuple[Place, str]](), dict[object, tuple[Place, str]]()
    told = evidence.telemetry.of(evidence.telemetry.lost.where(bool))
    for row, (why, ended_unix_s) in enumerate(zip(told.lost, told.ended_unix_s.tolist(), strict=True)):
        survey = evidence.surveys.get(told.place_of(row).host)
        # Ignore a loss older than the survey: the node may have been repaired before the run was resumed.
        if survey is None or ended_unix_s >= survey.unix_s:
            found.append((told.place_of(row), f"lost under load: {why}"))
    for place, _, after in gpus_afterwards(evidence):
        if after is None or after.is_lost:
            why = "the driver no longer lists it" if after is None else after.problem
            found.append((place, f"lost after ranks failed: {why}"))
        elif after.problem:
            yield place.host, unknown(f"{place.label} did not answer after ranks failed: {after.problem}")
    for place, rounds in lost_places(evidence).items():
        found.append((place, f"lost under load: not measured in {rounds} rounds in which its peers were"))
    errors = gpu_errors_in(evidence)
    found += [(one.place, one.because.args[0]) for one in errors if one.is_certain]
    for place, why in found:
        lost.setdefault(place.identity, (place, why))
    for place, why in lost.values():
        yield place.host, fault(why, place, "nobody")
    for one in errors:
        if not one.is_certain and one.place.identity not in lost:
            yield one.place.host, note(one.because.args[0], one.place)
    for survey in evidence.post_mortems:
        if why := _why_silent(survey):  # only a note if the node was slow, as it had little time to answer
            is_slow = survey.problem and not survey.driver_problem
            yield survey.host, Finding("note" if is_slow else "unknown", f"after ranks failed: {why}")


def gpus_afterwards(evidence: Evidence) -> Iterator[tuple[Place, SurveyedGpu, SurveyedGpu | None]]:
    """Each GPU that answered before launch, then, and after ranks failed; None if the driver no longer lists it.

    GPUs are found by UUID, those that no longer give one by index. Other GPUs than were surveyed, as in a later job
    step, say nothing about those.
    """
    for after in evidence.post_mortems:
        before = evidence.surveys.get(after.host)
        if before is None or _why_silent(after):
            continue
        known, listed = {gpu.uuid for gpu in before.gpus}, {gpu.uuid or gpu.index: gpu for gpu in after.gpus}
        # One that gave no UUID before may give it now.
        if len({gpu.uuid for gpu in after.gpus} - {"", *known}) <= sum(not gpu.uuid for gpu in before.gpus):
            for gpu, place in gpu_places(before):
                if not gpu.problem:
                    yield place, gpu, listed.get(gpu.uuid) or listed.get(gpu.index)


def _why_silent(after: Survey) -> str:
    gone = "" if after.has_driver else "the NVIDIA driver is no longer loaded"
    return after.problem or after.driver_problem or gone


def find_transports(evidence: Evidence, expected: NodeExpectation) -> OfChecks:
    """Ranks use the fastest available links.

    Between nodes: no TCP if any node has active InfiniBand, or RoCE that some rank uses; and as many active InfiniBand
    ports as most other nodes. Within a node: NVLink or P2P if the SKU has NVLinks.
    """
    everyone, surveyed, asked = evidence.transports.values(), _surveyed(evidence), expected.gpus_per_node or 1
    is_one_node = not expected.crosses_nodes or evidence.plan.nodes <= 1
    # A network connection to an unknown peer counts as one to another node.
    unclear = {one.rank: {name for name in one.channels_somewhere if name.startswith(_NETWORKS)} for one in everyone}
    between = {one.rank: {*one.channels_between_nodes, *unclear[one.rank]} for one in everyone}
    is_crossed = any(between.values())
    # An Ethernet port may belong to the management network; it counts as RoCE only if NCCL uses RDMA somewhere.
    uses_rdma = any(name.startswith(_RDMA) for one in everyone for name in one.channels)
    layers = ("InfiniBand", "Ethernet") if uses_rdma else ("InfiniBand",)
    fast = {host: _active_ports(survey, *layers) for host, survey in surveyed.items()}
    active = {host: len(_active_ports(survey, "InfiniBand")) for host, survey in surveyed.items()}
    counts, others = Counter(active.values()), len(active) - 1
    of_hosts: dict[str, dict[Place, RankTransport]] = {}
    for place, one in evidence.transports.items():
        of_hosts.setdefault(place.host, {})[place] = one
    for host, ranks in of_hosts.items():
        yield "transport", host, Finding("looked", gpus=len(ranks))
        if len(ranks) < asked:
            yield "transport", host, unknown(f"NCCL logged connections of {len(ranks)} of {asked} ranks")
        for place, one in ranks.items():
            within = {*one.channels_within_node, *(unclear[one.rank] if is_one_node else ())}
            detours = ", ".join(sorted(name for name in within if name.startswith(_DETOURS)))
            if is_one_node and len(ranks) == 1:
                pass  # without another rank NCCL may not even have begun its log
            elif one.problem or one.unreadable:
                why = one.problem or f"unknown line in NCCL's log: {one.unreadable[0]}"
                yield "transport", host, unknown(why, place)
            elif not one.channels and not one.nvls:
                yield "transport", host, unknown("NCCL did not connect it to any other rank", place)
            elif expected.nvlinks and detours:
                yield (
                    "transport",
                    host,
                    fault(f"reaches GPUs of its own node through {detours}; expected NVLink or P2P", place),
                )
        if is_one_node:
            continue
        if not is_crossed:
            yield "transport", host, unknown("no rank communicated with another node")
            continue
        used, survey = sorted({name for one in ranks.values() for name in between[one.rank]}), surveyed.get(host)
        if by_host := [name for name in used if name.startswith(_RDMA) and "GDRDMA" not in name]:
            yield "transport", host, note(f"{', '.join(by_host)} goes through host memory: no GPUDirect RDMA")
        uses_tcp = any(name.startswith("NET/Socket") for name in used)
        if survey is None:
            if uses_tcp:
                yield "transport", host, unknown("it uses TCP to other nodes, and its ports were not surveyed")
            continue  # other checks report the missing survey
        states = ", ".join(f"{port.device}:{port.port} is {port.state}" for port in survey.infiniband) or "it has none"
        if uses_tcp and fast[host]:
            are = "is" if len(fast[host]) == 1 else "are"
            yield "transport", host, fault(f"uses TCP to other nodes although {', '.join(fast[host])} {are} active")
        elif uses_tcp and any(fast.values()):
            text = "uses TCP although other nodes have active InfiniBand or RoCE ports"
            yield "transport", host, fault(f"{text}; here: {states}")
        elif uses_tcp and (ethernet := _active_ports(survey, "Ethernet")):
            yield "transport", host, note(f"uses TCP to other nodes; could {', '.join(ethernet)} do RoCE?")
        # NCCL silently uses fewer ports than most others have.
        more = {ports: nodes for ports, nodes in counts.items() if ports > active[host]}
        if more and 2 * sum(more.values()) > others:
            have = f"{sum(more.values())} of {others} other nodes have {min(more)}{' or more' if len(more) > 1 else ''}"
            text = f"{active[host]} InfiniBand ports are active; {have}; here: {states}"
            yield "transport", host, fault(text) if len(active) >= _FEWEST_TO_COMPARE else note(text)


def _active_ports(survey: Survey, *link_layers: str) -> list[str]:
    """``mlx5_0:1 (InfiniBand)`` …"""
    return [
        f"{port.device}:{port.port} ({port.link_layer})"
        for port in survey.infiniband
        if port.link_layer in link_layers
        and port.state.rpartition(":")[2].strip().upper() == "ACTIVE"  # sysfs writes ``4: ACTIVE``
    ]
