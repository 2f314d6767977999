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
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import ThresholdsUsed
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu
from pytest_ddpscale.run.table import Columns
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
USUAL_GPUS_PER_NODE = 8
THIS_MACHINE = Cluster()
# `nvidia-smi` takes up to ten seconds on eight GPUs without persistence mode.
DRIVER_LIMIT_S = 60.0


@dataclass(frozen=True)
class Site:
    """Where the session runs, and its options.

    Attributes:
        collect_only: whether nothing is measured, so that no device is needed.
        asked: command-line options about how to measure and judge, by flag; empty for a switch.
        paths: test paths named on the command line.
    """

    settings: Settings
    rootdir: Path
    invocation_dir: Path
    argv: tuple[str, ...] = ()
    collect_only: bool = False
    asked: Mapping[str, str] = field(default_factory=dict)
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
        found, sku = [], self.thresholds.thresholds.skus[self.sku]
        for change in weaker_bounds(self.thresholds, self.sku):
            if (was := change.was) is not None:
                now = change.now
                only_warns = now is not None and (was.severity, now.severity) == ("fail", "warn")
                other = f", now {now.one_gpu_text}" if now is not None and now.one_gpu != was.one_gpu else ""
                unit, bound = sku.unit_of(was), now.bound if now else None
                found.append(LoweredBound(f"{was}{other}", was.metric, unit, was.bound, bound, only_warns))
        return tuple(found)

    @cached_property
    def altered(self) -> tuple[str, ...]:
        """Other parts of the SKU that differ from the files that the thresholds file extends."""
        return altered_parts(self.thresholds, self.sku)

    def command_again(self, machine: Machine) -> tuple[str, ...]:
        """The command that measures the same again, from any directory or machine that reaches its nodes.

        Its words are SKU, launcher, nodes, command-line options and paths, with secrets masked. Append `-k` with a
        requirement's id to select one.
        """
        given, per_node, cluster = dict(self.site.asked), self.settings.gpus_per_node, machine.cluster
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
        allowed = ["--allow-simulated"] if is_simulated else []
        return shlex.join(["ddpscale", "calibrate", str(run), *self._thresholds_option, *allowed])

    @property
    def _thresholds_option(self) -> list[str]:
        return [] if self.settings.thresholds is None else [f"--thresholds={self.settings.thresholds}"]

    def evidence_of_nothing(self, plan: Plan | None = None) -> Evidence:
        """Evidence of a run, planned or not, of which nothing was measured."""
        return Evidence(plan or Plan(self.sku, self.device_type, ()), Columns(), {})


@dataclass(frozen=True)
class Machine:
    """The nodes and devices to measure.

    Attributes:
        cluster: the nodes.
        devices: GPUs (CPU: ranks) that may be used, on all nodes; None if unknown, as on a laptop that only plans.
        gpus_asked: requested GPUs per node, if more than this node has.
        silent: messages about GPUs that are missing here or do not answer.
        lacks_gpus: whether no GPU answers here, so that the check of GPUs is all that can be judged; `devices` are then
            those that should be there.
    """

    cluster: Cluster = THIS_MACHINE
    devices: int | None = None
    gpus_asked: int | None = None
    silent: tuple[str, ...] = ()
    lacks_gpus: bool = False

    @property
    def per_node(self) -> int | None:
        """Devices of each node; None if unknown."""
        return None if self.devices is None else self.devices // self.cluster.nodes


def thresholds_path(site: Site) -> Path:
    """The requested file, else the one here or in the root directory, else the packaged one."""
    if site.settings.thresholds is not None:
        return site.settings.thresholds
    here = [folder / DEFAULT_NAME for folder in (site.invocation_dir, site.rootdir)]
    return next((path for path in here if path.is_file()), None) or packaged(DEFAULT_NAME)


def load_unchanged(used: ThresholdsUsed, *copies: Path) -> ThresholdsFile:
    """The thresholds with which a run began, from their place or a copy. Raises ThresholdsError if they are nowhere."""
    why = ""
    for path in (Path(used.path), *copies):
        try:
            if (found := load_thresholds(path, of_earlier_run=True)).digests == used.digests:
                return found
        except ThresholdsError as error:
            why = why or f" ({error.found})"
    raise ThresholdsError(
        used.path, f"is gone or has changed since the run began, or is refused now{why}",
        f"the same file (sha256 {used.digests})",
        "Restore it, or name the file to judge by with --thresholds.",
    )  # fmt: skip


def measured_sku(thresholds: ThresholdsFile, settings: Settings, earlier: RunDirectory) -> str:
    """The SKU of an earlier run, which is never judged by another SKU's thresholds.

    Raises:
        SkuError: the settings name another SKU, or the thresholds file does not have it.
        RunDirectoryError: run.json is broken.
    """
    measured = earlier.read_run().sku
    if settings.gpu_sku == AUTO:
        return thresholds.sku_name(measured, where=str(earlier.run_json))
    asked = thresholds.sku_name(settings.gpu_sku)
    if asked != thresholds.thresholds.canonical_name(measured):
        raise SkuError(
            "--gpu-sku", f"found {asked}, but {earlier.path} was measured on {measured}", measured,
            f"Omit --gpu-sku, or use --gpu-sku={measured}.",
        )  # fmt: skip
    return asked


def look(site: Site, thresholds: ThresholdsFile, sku: str, *, judges_none: bool = False) -> tuple[Subject, Machine]:
    """Determine the SKU and the devices to measure; `sku` is the requested name.

    With `judges_none` a machine on which no GPU is left is a machine without them, if a check of its named SKU rejects
    that: it has the GPUs that it should have. Otherwise it is refused.

    Raises:
        BadInput: the machine cannot be measured, or not as the requested SKU.
    """
    settings, skus = site.settings, thresholds.thresholds.skus
    cluster = launcher_for(settings, os.environ).cluster(plans_only=site.collect_only)
    if cluster.slots is not None and settings.gpus_per_node is None:
        settings = settings._replace(gpus_per_node=cluster.slots)
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
    here = gpus_here(skus.values()) if needs_gpu else GpusHere()
    gpus, silent, asked = here.gpus, here.silent, gpus_asked(settings, cluster)
    problems = [f"{error.where}: {error.found}" for error in silent]
    if judges_none and named and not gpus and (silent or here.is_fault) and _checks_gpus(skus[named]):
        expected = (asked or usual_devices(skus[named])) * cluster.nodes
        machine = Machine(cluster, expected, silent=tuple(problems) or (here.why_none,), lacks_gpus=True)
        return Subject(site, thresholds, named), machine
    if silent and not gpus:
        raise silent[0]
    sku = resolve_sku(thresholds, sku, gpus, not no_devices_here, here.why_none)
    subject, some_are_gone = Subject(site, thresholds, sku), 0 < len(gpus) < asked and _checks_gpus(skus[sku])
    if silent and not _checks_gpus(skus[sku]):
        raise silent[0]
    if some_are_gone:  # a fault of the node, with a verdict, not a mistake on the command line
        problems.append(f"{len(gpus)} GPUs are visible here, {asked} were requested")
        settings = settings._replace(gpus_per_node=None, world_sizes=None)
    per_node = devices_per_node(
        settings, subject.device_type, len(gpus), collect_only=site.collect_only, cluster=cluster
    )
    if per_node is None and cluster.nodes > 1:  # planning only, but the plan needs a number of ranks per node
        per_node = usual_devices(skus[sku])
    devices = None if per_node is None else per_node * cluster.nodes
    return subject, Machine(cluster, devices, asked if some_are_gone else None, tuple(problems))


def _checks_gpus(sku: Sku) -> bool:
    """Whether missing GPUs have a verdict."""
    return sku.checks.get("gpus") == "fail"


def usual_devices(sku: Sku) -> int:
    """Assumed number of GPUs of a node that cannot be inspected."""
    return (sku.node.gpus if sku.node else None) or USUAL_GPUS_PER_NODE


def gpus_here(skus: Iterable[Sku], limit_s: float = DRIVER_LIMIT_S) -> GpusHere:
    """Survey the GPUs of this machine, in a process of its own, because a call that hangs could not be abandoned here.

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
    names = [one.detect.name or "" for one in skus if one.detect.memory_gib]
    silent = {gpu.index: why for gpu in survey.gpus if gpu.is_visible and (why := _why_silent(gpu, names))}
    gpus = [gpu for gpu in usable(survey.gpus) if gpu.index not in silent]
    if gpus or silent:
        action = "Look for Xid messages with `dmesg`, drain the node, then reset the GPU or reboot."
        errors = [
            SkuError(f"GPU {index} of {survey.host}", why, "a GPU that answers", action)
            for index, why in silent.items()
        ]
        return GpusHere(gpus, errors)
    if hidden == "NoDevFiles":
        return GpusHere(why_none=f"the job was given no GPU (CUDA_VISIBLE_DEVICES={hidden}): ask for GPUs of each node")
    if survey.gpus:
        why = f"CUDA_VISIBLE_DEVICES={hidden} or a cgroup hides all {len(survey.gpus)} GPUs of this machine"
        return GpusHere(why_none=why)
    if not survey.has_driver:
        return GpusHere(why_none="no NVIDIA driver is loaded here")
    why = "the NVIDIA driver is loaded and lists no GPU: look for Xid messages with `dmesg`"
    return GpusHere(why_none=why, is_fault=True)


def _why_silent(gpu: SurveyedGpu, with_memory: Iterable[str]) -> str:
    """Why a GPU cannot be told or used; empty if it can. `with_memory` are patterns of names of GPUs with memory."""
    if gpu.is_lost:
        return "the driver has lost this GPU (NVML: GPU is lost)"
    unread = gpu.unreadable.get("memory_bytes", "")
    # A GPU that shares the host's memory, such as GB10, has none of its own.
    is_fault = "not supported" not in unread.lower() or any(is_named(gpu.name, one) for one in with_memory)
    return gpu.problem or (f"nvmlDeviceGetMemoryInfo fails ({unread})" if unread and is_fault else "")


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
