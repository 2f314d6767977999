"""``python -m pytest_ddpscale.node.survey``: survey this node and print it as a line of JSON. Changes nothing.

It is a separate process so that the agent can abandon it if a driver or file system hangs. It announces each step on
standard error, so that the agent can tell what hung. torch, whose import takes seconds, hangs or crashes, comes last:
what is known is printed before, and the last line counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.node.addresses import outward_addresses
from pytest_ddpscale.node.processes import Command, last_line
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.strict_json import decode
from pytest_ddpscale.run.survey_record import InfiniBandPort, Survey, SurveyedGpu
from pytest_ddpscale.telemetry.nvml import read_gpus

_SURVEYS = msgspec.json.Decoder(Survey)
_TOPOLOGY_LIMIT_S = 20.0
_OF_TORCH = ("torch_problem", "cuda_problem")
_UNDONE = "not done"  # a part of the survey to come
_SECOND_LOOK_S = 5.0
_ADAPTERS = Path("/sys/class/infiniband")
_AMAZON = "0x1d0f"  # vendor of a PCI device
_PCI_FUNCTION = re.compile(r"[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (nothing is written to it)
_INDEX = re.compile(r"\+?[0-9]+")
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def survey_command(host: str, *options: str) -> list[str]:
    """``python -m pytest_ddpscale.node.survey …`` with the running interpreter, which the ranks use too."""
    return [sys.executable, "-m", "pytest_ddpscale.node.survey", f"--host={host}", *options]


def survey_from(command: Command, host: str) -> Survey:
    """The survey of a host by its command, which is done, with `problem` set if it failed."""
    problem = (
        f"was not done within {command.limit_s:g} s" if command.was_too_late else f"ended with code {command.code}"
    )
    problem = command.problem or f"{problem}; its last message: {last_line(command.errors)}"
    for line in reversed(command.printed.splitlines()):  # a site's own output may be between
        with contextlib.suppress(ValueError):
            surveys = decode(_SURVEYS, line)
            return replace(surveys, **{name: problem for name in _OF_TORCH if getattr(surveys, name) == _UNDONE})
    problem = problem if command.code != 0 else f"printed no valid survey: {last_line(command.printed)}"
    return Survey(host, time.time(), f"the survey {problem}")


def survey(host: str, *, gpus: bool) -> Iterator[Survey]:
    """Survey this node, without torch and then with it."""
    command = Command(["nvidia-smi", "topo", "-m"], _TOPOLOGY_LIMIT_S) if gpus else None
    driver = _of_driver(host) if gpus else Survey(host, time.time())
    _about_to("read addresses")
    addresses = outward_addresses(most=None)
    _about_to("read InfiniBand ports")
    ports = infiniband_ports()
    _about_to("read free disk space")
    free = free_bytes()
    topology = ""
    if command is not None:
        _about_to("wait for nvidia-smi")
        command.is_done(_TOPOLOGY_LIMIT_S)
        topology = command.printed.decode("utf-8", errors="replace") if command.code == 0 else ""
    versions = dict.fromkeys(("driver", "cuda_driver", "torch", "cuda", "nccl")) | driver.versions
    versions |= {"python": platform.python_version(), "pytest_ddpscale": __version__, "kernel": platform.release()}
    result = replace(
        driver,
        cores=len(os.sched_getaffinity(0)),
        versions=versions,
        torch_problem=_UNDONE,
        free_bytes=free,
        infiniband=ports,
        addresses=addresses,
        topology=_TERMINAL_CODES.sub("", topology).strip("\n"),
    )
    yield result
    _about_to("import torch")
    try:
        yield from _with_torch(result, counts_gpus=gpus)
    except Exception as error:
        yield replace(result, torch_problem=f"{type(error).__name__}: {error}")


def _with_torch(surveyed: Survey, *, counts_gpus: bool) -> Iterator[Survey]:
    import torch

    versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    # Touches no GPU, unlike torch.cuda.get_arch_list() of older versions, which initialises CUDA.
    try:
        architectures = (torch._C._cuda_getArchFlags() or "").split()
    except Exception:
        architectures = torch.cuda.get_arch_list()
    with contextlib.suppress(Exception):
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    surveyed = replace(
        surveyed, versions=surveyed.versions | versions, arch_list=tuple(architectures), torch_problem=""
    )
    yield replace(surveyed, cuda_problem=_UNDONE if counts_gpus else "")
    if not counts_gpus:
        return
    # Initialises CUDA, and creates no context: NVML does not tell whether CUDA works, which is also what
    # torch.cuda.device_count() asks. torch gives CUDA's error as a warning.
    _about_to("count GPUs by CUDA")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch._C._cuda_getDeviceCount() if torch.version.cuda else None
    problem = " ".join(str(warning.message).partition(" (Triggered")[0] for warning in caught)
    yield replace(surveyed, torch_gpus=count, cuda_problem=problem)


def post_mortem(host: str) -> Survey:
    """Survey only the GPUs after ranks have failed, because the supervisor is waiting.

    What does not answer is asked a second time; that a GPU is lost is an answer.
    """
    first = _of_driver(host)
    answered = {gpu.index: gpu for gpu in first.gpus if gpu.is_lost or not gpu.problem}
    if len(answered) == len(first.gpus) and not first.driver_problem:
        return first
    time.sleep(_SECOND_LOOK_S)
    second = _of_driver(host)
    return replace(second, gpus=tuple(answered.get(gpu.index, gpu) for gpu in second.gpus))


def _of_driver(host: str) -> Survey:
    _about_to("ask the NVIDIA driver")
    surveyed = read_gpus(host, lambda index: _about_to(f"ask the NVIDIA driver for GPU {index}"))
    return replace(surveyed, gpus=with_visibility(surveyed.gpus, os.environ.get("CUDA_VISIBLE_DEVICES")))


def with_visibility(gpus: tuple[SurveyedGpu, ...], visible_devices: str | None) -> tuple[SurveyedGpu, ...]:
    """Set which GPUs ranks may use and by which local rank, by CUDA's rules over GPUs that no cgroup withholds.

    CUDA does not list a lost GPU, so GPUs after it move up, in its numbers and in those of CUDA_VISIBLE_DEVICES. The
    lost one is visible, without a local rank, if it would be one of the listed GPUs if it answered. A GPU without a
    readable UUID cannot be excluded by a list of UUIDs and counts as visible.

    Args:
        gpus: all GPUs of the node, in PCI bus order.
        visible_devices: CUDA_VISIBLE_DEVICES; None if it is not set.
    """
    accessible = [gpu for gpu in gpus if gpu.is_visible]
    indices = {accessible[i].index for i in visible_ordinals(visible_devices, [gpu.uuid for gpu in accessible])}
    listed = [gpu for gpu in accessible if not gpu.is_lost]
    ordinals = visible_ordinals(visible_devices, [gpu.uuid for gpu in listed])
    ranks: dict[int, int | None] = {gpu.index: None for gpu in accessible if gpu.is_lost and gpu.index in indices}
    ranks |= {listed[i].index: local_rank for local_rank, i in enumerate(ordinals)}
    if visible_devices is not None and visible_devices.startswith("GPU-"):
        ranks |= {gpu.index: None for gpu in accessible if not gpu.uuid}
    return tuple(replace(gpu, is_visible=gpu.index in ranks, local_rank=ranks.get(gpu.index)) for gpu in gpus)


def visible_ordinals(visible_devices: str | None, uuids: Sequence[str]) -> list[int]:
    """Positions in `uuids` of the devices that CUDA_VISIBLE_DEVICES leaves visible.

    The rules are CUDA's, as torch.cuda mirrors them: the first entry decides between indices and
    UUID prefixes; the first entry that names no device, or more than one, ends the list; a
    repeated device makes the whole list empty.

    Args:
        visible_devices: the variable's value; None if it is not set.
        uuids: the UUID of every device of the machine, in PCI bus order.
    """
    if visible_devices is None:
        return list(range(len(uuids)))
    by_uuid = visible_devices.startswith("GPU-")
    ordinals: list[int] = []
    for entry in visible_devices.split(","):
        ordinal = _with_uuid_prefix(entry, uuids) if by_uuid else _with_index(entry, len(uuids))
        if ordinal is None:
            break
        if ordinal in ordinals:
            return []
        ordinals.append(ordinal)
    return ordinals


def _with_uuid_prefix(entry: str, uuids: Sequence[str]) -> int | None:
    matches = [i for i, uuid in enumerate(uuids) if uuid.startswith(entry)] if entry.startswith("GPU-") else []
    return matches[0] if len(matches) == 1 else None


def _with_index(entry: str, count: int) -> int | None:
    # CUDA parses the leading number of an entry, as strtoul does: '1st' is 1.
    number = _INDEX.match(entry.strip())
    return int(number[0]) if number and int(number[0]) < count else None


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[SurveyedGpu]:
    """The GPUs that answer and that a CUDA program started with `environ` would see, in its order."""
    return usable(with_visibility(read_gpus("").gpus, environ.get("CUDA_VISIBLE_DEVICES")))


def usable(gpus: Iterable[SurveyedGpu]) -> list[SurveyedGpu]:
    """Those that ranks may use and that answer, by local rank."""
    ranks = {gpu.local_rank: gpu for gpu in gpus if gpu.local_rank is not None and not gpu.problem}
    return [ranks[rank] for rank in sorted(ranks)]


@dataclass(frozen=True)
class GpusHere:
    """The GPUs of this machine.

    Attributes:
        gpus: those that ranks may use and that answer, by local rank.
        silent: errors of those that do not answer.
        why_none: why there is none at all; empty if there is one.
        is_fault: whether that is a fault of the machine, and not a setting.
    """

    gpus: Sequence[SurveyedGpu] = ()
    silent: Sequence[SkuError] = ()
    why_none: str = ""
    is_fault: bool = False


def refuse_missing_torch() -> None:
    """Refuse a Python without torch before anything is started with it.

    Raises:
        OptionError: torch or torchvision is not installed. Whether they work, a node's survey tells.
    """
    missing = [name for name in ("torch", "torchvision") if find_spec(name) is None]
    if missing:
        raise OptionError(
            sys.executable, f"{' and '.join(missing)} not installed", "PyTorch, in the Python that trains",
            "Install it (https://pytorch.org/get-started), or judge a run measured elsewhere with --ddp-judge=RUN_DIR.",
        )  # fmt: skip


def infiniband_ports(adapters: Path = _ADAPTERS) -> tuple[InfiniBandPort, ...]:
    """Ports of InfiniBand, RoCE and EFA adapters, from sysfs."""
    return tuple(map(_port, sorted(adapters.glob("*/ports/[0-9]*"))))


def _port(port: Path) -> InfiniBandPort:
    adapter = port.parent.parent
    state = _read(port / "state").rpartition(":")[2].strip()  # "4: ACTIVE"
    # The kernel has no link layer for EFA ("Unknown"), a device of Amazon's with a driver of its own.
    is_efa = (adapter / "device/driver").resolve().name == "efa" or _read(adapter / "device/vendor") == _AMAZON
    rate = re.match(r"[\d.]+(?= Gb/sec)", _read(port / "rate"))  # "400 Gb/sec (4X NDR)"
    layer = "EFA" if is_efa else _read(port / "link_layer")
    device, gbps = adapter / "device", float(rate[0]) if rate else None
    function = (device / "physfn" if (device / "physfn").exists() else device).resolve()
    name = function.name if _PCI_FUNCTION.fullmatch(function.name) else ""
    return InfiniBandPort(adapter.name, int(port.name), state, layer, gbps, name, _pcie_gbps(function))


def _pcie_gbps(function: Path) -> float | None:
    """What a PCI function and the port above it can carry, in Gb/s; None if neither says."""
    ends = (function, function.parent)
    rates = [float(match[0]) for end in ends if (match := re.match(r"[\d.]+(?= GT/s)", _read(end / "max_link_speed")))]
    lanes = [int(width) for end in ends if (width := _read(end / "max_link_width")).isdigit() and int(width)]
    # Of ten bits that generations 1 and 2 send, eight are data; of 130 that later ones send, 128.
    return min(rates) * min(lanes) * (0.8 if min(rates) < 8 else 128 / 130) if rates and lanes else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def free_bytes() -> dict[str, int]:
    """Free bytes for this user per file system, without those that are missing or cannot be read."""
    by_folder: dict[str, int] = {}
    for name, place in (("shared_memory", lambda: _SHARED_MEMORY), ("temporary", tempfile.gettempdir)):
        with contextlib.suppress(OSError):  # also if there is no writable temporary directory
            system = os.statvfs(place())
            by_folder[name] = system.f_bavail * system.f_frsize
    return by_folder


def _about_to(step: str) -> None:
    print(f"about to {step}", file=sys.stderr, flush=True)


def main() -> None:
    """Print the survey of this node."""
    parser = argparse.ArgumentParser(prog="python -m pytest_ddpscale.node.survey", description=__doc__)
    parser.add_argument("--host", default=socket.gethostname(), help="the node's name; default: the host's")
    parser.add_argument("--no-gpu", action="store_true", help="do not survey GPUs")
    parser.add_argument("--post-mortem", action="store_true", help="survey only GPUs")
    arguments = parser.parse_args()
    host = arguments.host
    for result in [post_mortem(host)] if arguments.post_mortem else survey(host, gpus=not arguments.no_gpu):
        print(f"\n{line_of(result).decode()}", end="", flush=True)


if __name__ == "__main__":
    main()
