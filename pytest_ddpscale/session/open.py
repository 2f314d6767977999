"""What a session is about: its thresholds, the GPU model, and the nodes with their devices."""

from __future__ import annotations

import math
import os
import platform
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from pytest_ddpscale.errors import OptionError, SkuError, ThresholdsError
from pytest_ddpscale.launch.launcher import Cluster, launcher_for
from pytest_ddpscale.node.processes import Command
from pytest_ddpscale.node.survey import GpusHere, refuse_missing_torch, survey_command, survey_from, usable
from pytest_ddpscale.plan.hardware import is_named
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.run_json import ThresholdsUsed
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import LoweredBound
from pytest_ddpscale.settings import AUTO, Settings
from pytest_ddpscale.sku.matching import resolve_sku
from pytest_ddpscale.thresholds.cases import device_type
from pytest_ddpscale.thresholds.changes import altered_parts, weaker_bounds
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.model import Sku
from pytest_ddpscale.util.masking import masked_arguments
from pytest_ddpscale.util.packaged import packaged

DEFAULT_NAME = "thresholds.yaml"
THIS_MACHINE = Cluster()


@dataclass(frozen=True)
class Site:
    """Where the session runs, and its options.

    Attributes:
        collect_only: whether nothing is measured, so that no device is needed.
        options: command-line options about how to measure and judge, by flag; empty for a switch.
        paths: test paths named on the command line.
    """

    settings: Settings
    rootdir: Path
    invocation_dir: Path
    argv: tuple[str, ...] = ()
    collect_only: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """The SKU to judge, by canonical name, and the thresholds to judge it by."""

    site: Site
    thresholds: ThresholdsFile
    sku: str

    @property
    def settings(self) -> Settings:
        """The user's options."""
        return self.site.settings

    @property
    def device_type(self) -> DeviceType:
        """``cpu`` or ``cuda``."""
        return device_type(self.thresholds.thresholds.skus[self.sku])

    @property
    def used(self) -> ThresholdsUsed:
        """The thresholds file and those that it extends, the nearest first, with digests."""
        extends = tuple(ThresholdsUsed(path, sha256) for path, sha256 in self.thresholds.extended)
        return ThresholdsUsed(str(self.thresholds.path), self.thresholds.sha256, extends)

    @cached_property
    def lowered(self) -> tuple[LoweredBound, ...]:
        """Bounds that the thresholds file lowers relative to the files it extends."""
        bounds, sku = [], self.thresholds.thresholds.skus[self.sku]
        for change in weaker_bounds(self.thresholds, self.sku):
            if (was := change.was) is not None:
                bound, now = None if change.now is None else change.now.bound, change.now or was
                only_warns = (was.severity, now.severity) == ("fail", "warn")
                other = f", now {now.one_gpu_text}" if now.one_gpu != was.one_gpu else ""
                bounds.append(LoweredBound(f"{was}{other}", was.metric, sku.unit_of(was), was.bound, bound, only_warns))
        return tuple(bounds)

    @cached_property
    def altered(self) -> tuple[str, ...]:
        """Other parts of the SKU that differ from the files that the thresholds file extends."""
        return altered_parts(self.thresholds, self.sku)

    def command_again(self, machine: Machine) -> tuple[str, ...]:
        """The command that measures the same again, from any directory or machine that reaches its nodes.

        Its words are SKU, launcher, nodes, command-line options and paths, with secrets masked. Append `-k` with a
        requirement's id to select one.
        """
        given, per_node, cluster = dict(self.site.options), self.settings.gpus_per_node, machine.cluster
        if cluster.launcher != THIS_MACHINE.launcher:  # name the nodes, which may be others where the command is typed
            given = {"--ddp-launcher": cluster.launcher, "--ddp-nodes": str(cluster.nodes), **given}
            per_node = per_node or machine.per_node
        if per_node is not None:
            given["--ddp-gpus-per-node"] = str(per_node)
        options = [f"{flag}={value}" if value else flag for flag, value in given.items()]
        command = ["pytest", f"--gpu-sku={self.sku}", *self._thresholds_option, *options, *self.site.paths]
        return tuple(masked_arguments(command))

    def calibrate_command(self, run: Path, *, is_simulated: bool) -> str:
        """The command that computes bounds, which extend its thresholds, from a run, as one line for a shell.

        Others may be added to the run; a simulated one has to be allowed.
        """
        allowed = ["--allow-simulated"] * is_simulated
        return shlex.join(["ddpscale", "calibrate", str(run), *self._thresholds_option, *allowed])

    @property
    def _thresholds_option(self) -> list[str]:
        return [] if self.settings.thresholds is None else [f"--thresholds={self.settings.thresholds}"]


@dataclass(frozen=True)
class Machine:
    """The nodes and devices to measure.

    Attributes:
        cluster: the nodes.
        per_node: GPUs (CPU: ranks) of each node that may be used; None if unknown, as on a laptop that only plans.
        gpus_asked: requested GPUs per node, if more than this node has.
        silent: messages about GPUs that are missing here or do not answer.
        lacks_gpus: whether no GPU answers here, so that the check of GPUs is all that can be judged; `per_node` is
            then how many should be there.
    """

    cluster: Cluster = THIS_MACHINE
    per_node: int | None = None
    gpus_asked: int | None = None
    silent: tuple[str, ...] = ()
    lacks_gpus: bool = False

    @property
    def devices(self) -> int | None:
        """Those of all nodes; None if unknown."""
        return None if self.per_node is None else self.per_node * self.cluster.nodes


def thresholds_path(site: Site) -> Path:
    """The requested file, else the one here or in the root directory, else the packaged one."""
    candidates = [folder / DEFAULT_NAME for folder in (site.invocation_dir, site.rootdir)]
    return site.settings.thresholds or next(filter(Path.is_file, candidates), packaged(DEFAULT_NAME))


def load_unchanged(used: ThresholdsUsed, copy: Path) -> ThresholdsFile:
    """The thresholds with which a run began, from their place or a copy. Raises ThresholdsError if they are nowhere."""
    why = ""
    for path in (Path(used.path), copy):
        try:
            if (thresholds := load_thresholds(path, of_earlier_run=True)).digests == used.digests:
                return thresholds
        except ThresholdsError as error:
            why = why or f" ({error.found})"
    raise ThresholdsError(
        used.path, f"is gone or has changed since the run began, or is refused now{why}",
        f"the same file (sha256 {used.digests})",
        "Restore it, or name the file to judge by with --thresholds.",
    )  # fmt: skip


def resolve_machine(
    site: Site, thresholds: ThresholdsFile, sku: str, *, judges_none: bool = False
) -> tuple[Subject, Machine]:
    """Determine the SKU and the devices to measure; `sku` is the requested name.

    With `judges_none` a machine on which no GPU is left is a machine without them, if a check of its named SKU rejects
    that: it has the GPUs that it should have. Otherwise it is refused.

    Raises:
        BadInput: the machine cannot be measured, or not as the requested SKU.
    """
    settings, skus = site.settings, thresholds.thresholds.skus
    cluster = launcher_for(settings, os.environ).cluster(plans_only=site.collect_only)
    settings = settings._replace(gpus_per_node=settings.gpus_per_node or cluster.slots)
    site = replace(site, settings=settings)
    no_devices_here = site.collect_only or cluster.is_elsewhere
    if sku == AUTO and cluster.is_elsewhere and not site.collect_only:
        raise SkuError(
            "--gpu-sku=auto", "cannot look at GPUs on other machines", "a model", "For example, use --gpu-sku=b200."
        )
    if not (no_devices_here or settings.container or settings.remote_python):
        refuse_missing_torch()
    named = "" if sku == AUTO else thresholds.sku_name(sku)
    # A broken driver prevents neither planning nor runs on a CPU.
    needs_gpu = not named or not (no_devices_here or skus[named].detect.device == "cpu")
    usable = gpus_here(skus.values()) if needs_gpu else GpusHere()
    gpus, silent = usable.gpus, usable.silent
    requested = settings.gpus_per_node or -(-max(settings.world_sizes or (0,)) // cluster.nodes)
    problems = [f"{error.where}: {error.found}" for error in silent]
    if judges_none and named and not gpus and (silent or usable.is_fault) and _checks_gpus(skus[named]):
        expected = requested or usual_devices(skus[named])
        machine = Machine(cluster, expected, silent=tuple(problems) or (usable.why_none,), lacks_gpus=True)
        return Subject(site, thresholds, named), machine
    if silent and not gpus:
        raise silent[0]
    sku = resolve_sku(thresholds, sku, gpus, not no_devices_here, usable.why_none)
    subject, some_are_gone = Subject(site, thresholds, sku), 0 < len(gpus) < requested and _checks_gpus(skus[sku])
    if silent and not _checks_gpus(skus[sku]):
        raise silent[0]
    if some_are_gone:  # a fault of the node, with a verdict, not a mistake on the command line
        problems.append(f"{len(gpus)} GPUs are visible here, {requested} were requested")
        settings = settings._replace(gpus_per_node=None, world_sizes=None)
    per_node = devices_per_node(settings, cluster, subject.device_type, len(gpus), plans=site.collect_only)
    if per_node is None and cluster.nodes > 1:  # planning only, but the plan needs a number of ranks per node
        per_node = usual_devices(skus[sku])
    return subject, Machine(cluster, per_node, requested if some_are_gone else None, tuple(problems))


def _checks_gpus(sku: Sku) -> bool:
    """Whether missing GPUs have a verdict."""
    return sku.checks.get("gpus") == "fail"


def usual_devices(sku: Sku) -> int:
    """Assumed number of GPUs of a node that cannot be inspected."""
    return (sku.node.gpus if sku.node else None) or 8


def gpus_here(skus: Iterable[Sku], limit_s: float = 60.0) -> GpusHere:
    """Survey the GPUs of this machine, in a process of its own, because a call that hangs could not be abandoned here.

    On eight GPUs without persistence mode the driver takes up to ten seconds.

    Raises:
        SkuError: NVML hangs, crashes or is broken, or a MIG slice is requested.
    """
    host = platform.node()
    command = Command(survey_command(host, "--post-mortem"), limit_s)
    command.is_done(math.inf)
    return gpus_of(survey_from(command, host), os.environ.get("CUDA_VISIBLE_DEVICES", ""), skus)


def gpus_of(survey: Survey, hidden: str, skus: Iterable[Sku]) -> GpusHere:
    """The GPUs of a survey that had this CUDA_VISIBLE_DEVICES.

    One without memory does not answer if a SKU of its name has memory. Raises SkuError as `gpus_here`.
    """
    if slices := [entry.strip() for entry in hidden.split(",") if entry.strip().startswith("MIG-")]:
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
    names = [sku.detect.name or "" for sku in skus if sku.detect.memory_gib]
    silent, why, is_fault = dict[int, SkuError](), "", False
    for gpu in survey.gpus:
        unread = gpu.unreadable.get("memory_bytes", "")
        # A GPU that shares the host's memory, such as GB10, has none of its own.
        if "not supported" in unread.lower() and not any(is_named(gpu.name, name) for name in names):
            unread = ""
        lost = "the driver has lost this GPU (NVML: GPU is lost)" if gpu.is_lost else gpu.problem
        if gpu.is_visible and (found := lost or (f"nvmlDeviceGetMemoryInfo fails ({unread})" if unread else "")):
            action = "Look for Xid messages with `dmesg`, drain the node, then reset the GPU or reboot."
            silent[gpu.index] = SkuError(f"GPU {gpu.index} of {survey.host}", found, "a GPU that answers", action)
    gpus = [gpu for gpu in usable(survey.gpus) if gpu.index not in silent]
    if gpus or silent:
        pass
    elif hidden == "NoDevFiles":
        why = f"the job was given no GPU (CUDA_VISIBLE_DEVICES={hidden}): ask for GPUs of each node"
    elif survey.gpus:
        why = f"CUDA_VISIBLE_DEVICES={hidden} or a cgroup hides all {len(survey.gpus)} GPUs of this machine"
    elif not survey.has_driver:
        why = "no NVIDIA driver is loaded here"
    else:
        why, is_fault = "the NVIDIA driver is loaded and lists no GPU: look for Xid messages with `dmesg`", True
    return GpusHere(gpus, [*silent.values()], why, is_fault)


def devices_per_node(settings: Settings, cluster: Cluster, kind: DeviceType, gpus: int, *, plans: bool) -> int | None:
    """How many ranks fit a node; None if unknown, as on a laptop that only plans.

    Raises:
        OptionError: more ranks are requested than fit, or the number is not given for other machines.
    """
    requested, present = settings.gpus_per_node, gpus
    if cluster.is_elsewhere and requested is None and not plans:
        raise OptionError(
            "--ddp-gpus-per-node", "not given, and GPUs of other machines cannot be counted from here",
            "the number of GPUs on each node (on CPU: of ranks)",
        )  # fmt: skip
    if cluster.is_elsewhere or (plans and kind == "cuda" and not gpus):
        if requested is None:
            return None
        present = requested
    elif kind == "cpu":
        present = requested or len(os.sched_getaffinity(0))
    usable, largest = requested or present, max(settings.world_sizes or (0,))
    devices, most = "GPUs are visible" if kind == "cuda" else "CPU cores can be used", usable * cluster.nodes
    if usable > present:
        raise OptionError("--ddp-gpus-per-node", f"found {usable}, but {present} {devices}", f"at most {present}")
    found, hint = f"found {largest}, but {usable} {devices}", ""
    if cluster.nodes > 1:
        found = f"found {largest}, but {cluster.nodes} nodes have room for {usable} ranks each"
    elif kind == "cpu":
        hint = f"On CPU, --ddp-gpus-per-node={largest} lets ranks share cores."
    if largest > most:
        raise OptionError("--ddp-world-sizes", found, f"at most {most}", hint)
    return usable
