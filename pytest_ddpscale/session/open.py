"""Opens a session: finds thresholds, GPU model and nodes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pytest_ddpscale.errors import SkuError, ThresholdsError
from pytest_ddpscale.launch.launcher import Cluster, launcher_for
from pytest_ddpscale.node.survey import GpusHere, refuse_missing_torch
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import ThresholdsUsed
from pytest_ddpscale.session.devices import devices_per_node, gpus_asked, gpus_here, needs_no_gpu, without_lost_memory
from pytest_ddpscale.session.measure import MeasureSource
from pytest_ddpscale.session.resume import ResumeSource, read_resumption
from pytest_ddpscale.session.sources import EvidenceSource, JudgeSource, Machine, Site, Subject
from pytest_ddpscale.settings import AUTO, Settings
from pytest_ddpscale.sku.matching import resolve_sku
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.util.packaged import packaged

DEFAULT_NAME = "thresholds.yaml"
USUAL_GPUS_PER_NODE = 8


def find_source(site: Site) -> EvidenceSource:
    """Load thresholds, determine the SKU, and choose the source of evidence.

    Raises:
        BadInput: thresholds, SKU, options, or the run to judge or resume are invalid.
    """
    settings, sku = site.settings, site.settings.gpu_sku
    if settings.judge is not None:
        earlier = RunDirectory.open(settings.judge)
        record, path = earlier.read_run(), thresholds_path(site)
        by = (record.thresholds, *(one.thresholds for one in record.resumed))  # the latest session's, if it has one
        used = None if settings.thresholds else next(filter(None, reversed(by)), None)
        thresholds = load_thresholds(path) if used is None else load_unchanged(used, path)
        subject = Subject(site, thresholds, measured_sku(thresholds, settings, earlier))
        return JudgeSource(subject, earlier)
    thresholds = load_thresholds(thresholds_path(site), of_earlier_run=settings.resume is not None)
    if settings.resume is not None:
        begun = RunDirectory.open(settings.resume)
        if not begun.is_only_begun:
            resumption = read_resumption(begun)
            subject, machine = look(site, thresholds, measured_sku(thresholds, settings, begun))
            return ResumeSource(subject, machine, resumption)
        # Killed before it had a plan: measure a new run in its place.
        sku = measured_sku(thresholds, settings, begun)
        site = replace(site, settings=replace(settings, resume=None, run_dir=begun.path))
    subject, machine = look(site, thresholds, sku, judges_none=True)
    per_node = machine.per_node or _usual_devices(thresholds, subject.sku)
    return MeasureSource(subject, machine, Layout(machine.cluster.nodes, per_node))


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
    that; otherwise it is refused.

    Raises:
        BadInput: the machine cannot be measured, or not as the requested SKU.
    """
    settings = site.settings
    cluster = launcher_for(settings, os.environ).cluster(plans_only=site.collect_only)
    if cluster.slots is not None and settings.gpus_per_node is None:
        settings = replace(settings, gpus_per_node=cluster.slots)
        site = replace(site, settings=settings)
    no_devices_here = site.collect_only or cluster.is_elsewhere
    if sku == AUTO and cluster.is_elsewhere and not site.collect_only:
        raise SkuError(
            "--gpu-sku=auto", "cannot look at GPUs on other machines", "a model", "For example, use --gpu-sku=b200."
        )
    trains_here = not (no_devices_here or settings.container or settings.remote_python)
    if trains_here:
        refuse_missing_torch()
    here = GpusHere() if needs_no_gpu(thresholds, sku, no_devices_here) else gpus_here()
    here = without_lost_memory(here, thresholds)
    gpus, silent = here.gpus, here.silent
    are_gone = judges_none and sku != AUTO and not gpus and (bool(silent) or here.is_fault)
    if are_gone and thresholds.thresholds.skus[thresholds.sku_name(sku)].checks.get("gpus") == "fail":
        return _without_gpus(site, thresholds, thresholds.sku_name(sku), cluster, silent, here.why_none)
    if silent and not gpus:
        raise silent[0]
    requires = not no_devices_here
    sku = resolve_sku(thresholds, sku, gpus, requires, here.why_none)
    checks_gpus = thresholds.thresholds.skus[sku].checks.get("gpus") == "fail"  # then missing GPUs get a verdict
    if silent and not checks_gpus:
        raise silent[0]
    subject = Subject(site, thresholds, sku)
    problems = [f"{error.where}: {error.found}" for error in silent]
    asked, some_are_gone = gpus_asked(settings, cluster), False
    if gpus and asked > len(gpus) and checks_gpus:
        # A missing GPU is a fault of the node, with a verdict, not a mistake on the command line.
        problems.append(f"{len(gpus)} GPUs are visible here, {asked} were requested")
        settings, some_are_gone = replace(settings, gpus_per_node=None, world_sizes=None), True
    per_node = devices_per_node(
        settings, subject.device_type, len(gpus), collect_only=site.collect_only, cluster=cluster
    )
    if per_node is None and cluster.nodes > 1:  # planning only, but the plan needs a number of ranks per node
        per_node = _usual_devices(thresholds, sku)
    devices = None if per_node is None else per_node * cluster.nodes
    return subject, Machine(cluster, devices, asked if some_are_gone else None, tuple(problems))


def _without_gpus(
    site: Site, thresholds: ThresholdsFile, sku: str, cluster: Cluster, silent: Sequence[SkuError], reason: str
) -> tuple[Subject, Machine]:
    """The machine with the GPUs that it should have, none of which is left: the check of GPUs names the node."""
    problems = [f"{error.where}: {error.found}" for error in silent] or [reason]
    per_node = gpus_asked(site.settings, cluster) or _usual_devices(thresholds, sku)
    machine = Machine(cluster, per_node * cluster.nodes, None, tuple(problems), lacks_gpus=True)
    return Subject(site, thresholds, sku), machine


def _usual_devices(thresholds: ThresholdsFile, sku: str) -> int:
    """Assumed number of GPUs of a node that cannot be inspected."""
    node = thresholds.thresholds.skus[sku].node
    return (node.gpus if node else None) or USUAL_GPUS_PER_NODE


def load_unchanged(used: ThresholdsUsed, *copies: Path) -> ThresholdsFile:
    """The thresholds with which a run began, from their place or a copy. Raises ThresholdsError if they are nowhere."""
    refused: ThresholdsError | None = None
    for path in (Path(used.path), *copies):
        try:
            found = load_thresholds(path, of_earlier_run=True)
        except ThresholdsError as error:
            with suppress(OSError):
                is_same = used.digests.startswith(hashlib.sha256(path.read_bytes()).hexdigest())
                refused = error if is_same else refused
            continue
        if found.digests == used.digests:
            return found
    if refused is not None:
        raise ThresholdsError(
            refused.where, f"the file is as it was when the run began, but is refused now: {refused.found}",
            refused.expected, "Correct a copy, and name it with --thresholds.",
        )  # fmt: skip
    raise ThresholdsError(
        used.path, "is gone or has changed since the run began", f"the same file (sha256 {used.digests})",
        "Restore it, or name the file to judge by with --thresholds.",
    )  # fmt: skip


def thresholds_path(site: Site) -> Path:
    """The requested file, else the one here or in the root directory, else the packaged one."""
    if site.settings.thresholds is not None:
        return site.settings.thresholds
    here = [folder / DEFAULT_NAME for folder in (site.invocation_dir, site.rootdir)]
    return next((path for path in here if path.is_file()), None) or packaged(DEFAULT_NAME)
