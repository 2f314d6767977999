"""GPU model and devices, of an earlier run or of this machine, checked against the options."""

from __future__ import annotations

import os
import platform
import sys

from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.node.limited_command import Command
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.settings import AUTO, Settings
from pytest_ddpscale.sku.detection import Gpu, visible_gpus
from pytest_ddpscale.thresholds.loading import ThresholdsFile

# `nvidia-smi` takes up to ten seconds on eight GPUs without persistence mode.
DRIVER_LIMIT_S = 60.0


def needs_no_gpu(thresholds: ThresholdsFile, asked: str, collect_only: bool) -> bool:
    """Whether NVML is not needed, so that a broken driver does not prevent planning or CPU runs."""
    if asked == AUTO:
        return False
    sku = thresholds.thresholds.skus[thresholds.sku_name(asked)]
    return collect_only or sku.detect.device == "cpu"


def gpus_here(silent: list[SkuError]) -> list[Gpu]:
    """The GPUs of this machine that answer; errors of those that do not are appended to `silent`.

    Raises:
        SkuError: NVML hangs or is broken.
    """
    refuse_hanging_driver()
    return visible_gpus(silent=silent)


def refuse_hanging_driver(limit_s: float = DRIVER_LIMIT_S) -> None:
    """Query the driver from another process first, because a hanging call could not be abandoned in this one.

    Raises:
        SkuError: the driver did not answer in time or crashed the process. Other problems show up in the next query.
    """
    command = Command([sys.executable, "-m", "pytest_ddpscale.sku.detection"], limit_s)
    command.output()
    found = f"the NVIDIA driver did not answer within {limit_s:g} s" if command.was_too_late else ""
    if command.code is not None and command.code < 0:
        found = f"a process that queried the NVIDIA driver was ended by signal {-command.code}"
    if found:
        raise SkuError(
            f"NVML on {platform.node()}", found, "a working driver",
            "Look for Xid messages with `dmesg`, drain the node and reboot it; until then driver calls may hang.",
        )  # fmt: skip


def gpus_asked(settings: Settings, cluster: Cluster) -> int:
    """How many GPUs per node the user's options require; 0 if they do not say."""
    if settings.gpus_per_node is not None:
        return settings.gpus_per_node
    return -(-max(settings.world_sizes or (0,)) // cluster.nodes)


def devices_per_node(
    settings: Settings, kind: DeviceType, gpus: int, *, collect_only: bool, cluster: Cluster
) -> int | None:
    """How many ranks fit a node; None if unknown, as on a laptop that only plans.

    Raises:
        OptionError: more ranks are requested than fit, or the number is not given for other machines.
    """
    if cluster.is_elsewhere and settings.gpus_per_node is None and not collect_only:
        raise OptionError(
            "--ddp-gpus-per-node", "not given, and GPUs of other machines cannot be counted from here",
            "the number of GPUs on each node (on CPU: of ranks)",
        )  # fmt: skip
    if cluster.is_elsewhere or (kind == "cuda" and gpus == 0 and collect_only):
        present: int | None = settings.gpus_per_node
    elif kind == "cuda":
        present = gpus
    else:
        present = settings.gpus_per_node or len(os.sched_getaffinity(0))
    if present is None:
        return None
    what = "GPUs are visible" if kind == "cuda" else "CPU cores can be used"
    if settings.gpus_per_node is not None and settings.gpus_per_node > present:
        raise OptionError(
            "--ddp-gpus-per-node", f"found {settings.gpus_per_node}, but {present} {what}", f"at most {present}"
        )
    usable = settings.gpus_per_node or present
    too_large = [size for size in settings.world_sizes or () if size > usable * cluster.nodes]
    if too_large and cluster.nodes > 1:
        found = f"found {too_large[-1]}, but {cluster.nodes} nodes have room for {usable} ranks each"
        raise OptionError("--ddp-world-sizes", found, f"at most {usable * cluster.nodes}")
    if too_large:
        hint = f"On CPU, --ddp-gpus-per-node={too_large[-1]} lets ranks share cores." if kind == "cpu" else ""
        raise OptionError("--ddp-world-sizes", f"found {too_large[-1]}, but {usable} {what}", f"at most {usable}", hint)
    return usable
