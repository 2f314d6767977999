"""GPUs of this machine, and how many ranks fit a node."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import replace

from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.node.processes import Command
from pytest_ddpscale.node.survey import GpusHere, survey_command, survey_from, usable
from pytest_ddpscale.plan.hardware import is_named
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu
from pytest_ddpscale.settings import Settings
from pytest_ddpscale.thresholds.loading import ThresholdsFile

# `nvidia-smi` takes up to ten seconds on eight GPUs without persistence mode.
DRIVER_LIMIT_S = 60.0


def gpus_here(limit_s: float = DRIVER_LIMIT_S) -> GpusHere:
    """Survey the GPUs of this machine, in a process of its own, because a call that hangs could not be abandoned here.

    Raises:
        SkuError: NVML hangs, crashes or is broken, or a MIG slice is requested.
    """
    host = platform.node()
    command = Command(survey_command(host, "--post-mortem"), limit_s)
    command.is_done(math.inf)
    return gpus_of(survey_from(command, host), os.environ.get("CUDA_VISIBLE_DEVICES", ""))


def gpus_of(survey: Survey, hidden: str) -> GpusHere:
    """The GPUs of a survey that had this CUDA_VISIBLE_DEVICES. Raises SkuError as `gpus_here`."""
    slices = [entry.strip() for entry in hidden.split(",") if entry.strip().startswith("MIG-")]
    if slices:
        raise SkuError(
            "CUDA_VISIBLE_DEVICES", f"{slices[0]} is a MIG slice",
            "whole GPUs, because thresholds apply to whole GPUs",
            "Disable MIG (`nvidia-smi -mig 0`), or name GPUs by index or GPU-UUID.",
        )  # fmt: skip
    found, action = survey.problem, "Look for Xid messages with `dmesg`; drain the node and reboot it if it hangs."
    if "cannot be loaded" in survey.driver_problem:  # as `telemetry.nvml` says of a library that is there
        return GpusHere(why_none=survey.driver_problem, is_fault=True)
    if survey.driver_problem:
        found = f"the NVIDIA driver is loaded but does not answer ({survey.driver_problem})"
        action = "Make `nvidia-smi` work on this machine first: reload the driver or reboot."
    if found:
        raise SkuError(f"NVML on {survey.host}", found, "a working driver", action)
    shown = [gpu for gpu in survey.gpus if gpu.is_visible]
    silent = [_silence(gpu, survey.host, why) for gpu in shown if (why := _why_silent(gpu))]
    gpus = [gpu for gpu in usable(survey.gpus) if not _why_silent(gpu)]
    if gpus or silent:
        return GpusHere(gpus, silent)
    if hidden == "NoDevFiles":
        return GpusHere(why_none=f"the job was given no GPU (CUDA_VISIBLE_DEVICES={hidden}): ask for GPUs of each node")
    if survey.gpus:
        why = f"CUDA_VISIBLE_DEVICES={hidden} or a cgroup hides all {len(survey.gpus)} GPUs of this machine"
        return GpusHere(why_none=why)
    if not survey.has_driver:
        return GpusHere(why_none="no NVIDIA driver is loaded here")
    why = "the NVIDIA driver is loaded and lists no GPU: look for Xid messages with `dmesg`"
    return GpusHere(why_none=why, is_fault=True)


def _why_silent(gpu: SurveyedGpu) -> str:
    """Why a GPU cannot be told or used; empty if it can."""
    lost = "the driver has lost this GPU (NVML: GPU is lost)" if gpu.is_lost else ""
    unread = gpu.unreadable.get("memory_bytes", "")
    # A GPU that shares the host's memory, such as GB10, has none of its own.
    is_fault = unread and "not supported" not in unread.lower()
    return lost or gpu.problem or (f"nvmlDeviceGetMemoryInfo fails ({unread})" if is_fault else "")


def without_lost_memory(here: GpusHere, thresholds: ThresholdsFile) -> GpusHere:
    """Without GPUs that have no memory by NVML while SKUs of their name have: these do not answer."""
    names = [one.detect.name or "" for one in thresholds.thresholds.skus.values() if one.detect.memory_gib]
    lost = [gpu for gpu in here.gpus if gpu.memory_bytes is None and any(is_named(gpu.name, one) for one in names)]
    why = "nvmlDeviceGetMemoryInfo fails (Not Supported)"
    silent = [*here.silent, *(_silence(gpu, platform.node(), why) for gpu in lost)]
    return replace(here, gpus=[gpu for gpu in here.gpus if gpu not in lost], silent=silent)


def _silence(gpu: SurveyedGpu, host: str, why: str) -> SkuError:
    action = "Look for Xid messages with `dmesg`, drain the node, then reset the GPU or reboot."
    action = action if gpu.is_lost else "Make `nvidia-smi` work on this machine first."
    return SkuError(f"GPU {gpu.index} of {host}", why, "a GPU that answers", action)


def gpus_asked(settings: Settings, cluster: Cluster) -> int:
    """How many GPUs per node the user's options require; 0 if they do not say."""
    return settings.gpus_per_node or -(-max(settings.world_sizes or (0,)) // cluster.nodes)


def devices_per_node(
    settings: Settings, kind: DeviceType, gpus: int, *, collect_only: bool, cluster: Cluster
) -> int | None:
    """How many ranks fit a node; None if unknown, as on a laptop that only plans.

    Raises:
        OptionError: more ranks are requested than fit, or the number is not given for other machines.
    """
    asked, present = settings.gpus_per_node, gpus
    if cluster.is_elsewhere and asked is None and not collect_only:
        raise OptionError(
            "--ddp-gpus-per-node", "not given, and GPUs of other machines cannot be counted from here",
            "the number of GPUs on each node (on CPU: of ranks)",
        )  # fmt: skip
    if cluster.is_elsewhere or (kind == "cuda" and gpus == 0 and collect_only):
        if asked is None:
            return None
        present = asked
    elif kind == "cpu":
        present = asked or len(os.sched_getaffinity(0))
    usable, largest = asked or present, max(settings.world_sizes or (0,))
    what, most = "GPUs are visible" if kind == "cuda" else "CPU cores can be used", usable * cluster.nodes
    if usable > present:
        raise OptionError("--ddp-gpus-per-node", f"found {usable}, but {present} {what}", f"at most {present}")
    found, hint = f"found {largest}, but {usable} {what}", ""
    if cluster.nodes > 1:
        found = f"found {largest}, but {cluster.nodes} nodes have room for {usable} ranks each"
    elif kind == "cpu":
        hint = f"On CPU, --ddp-gpus-per-node={largest} lets ranks share cores."
    if largest > most:
        raise OptionError("--ddp-world-sizes", found, f"at most {most}", hint)
    return usable
