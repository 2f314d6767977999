"""The beginning of a session: which thresholds, which GPU model, which nodes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from pytest_ddpscale.errors import SkuError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.session.cluster import find_cluster
from pytest_ddpscale.session.devices import (
    devices_per_node,
    gpus_asked,
    gpus_here,
    measured_layout,
    measured_sku,
    needs_no_gpu,
)
from pytest_ddpscale.session.resume import read_resumption
from pytest_ddpscale.session.session import AcceptanceSession, Site
from pytest_ddpscale.settings import AUTO
from pytest_ddpscale.sku.matching import resolve_sku
from pytest_ddpscale.thresholds.cases import cases_for, device_type
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.util.packaged import packaged

DEFAULT_NAME = "thresholds.yaml"
USUAL_GPUS_PER_NODE = 8


def open_session(site: Site) -> AcceptanceSession:
    """Load thresholds and find out which SKU this is.

    Raises:
        BadInput: thresholds, SKU, options or the run to be judged or resumed are not usable.
    """
    settings = site.settings
    thresholds = load_thresholds(_thresholds_path(site))
    judged = RunDirectory.open(settings.judge) if settings.judge else None
    begun = RunDirectory.open(settings.resume) if settings.resume else None
    resumed = read_resumption(begun) if begun and not begun.is_only_begun else None
    if begun is not None and resumed is None:  # killed before it had a plan: measured as a new run, in its place
        settings = replace(settings, resume=None, run_dir=begun.path)
        site = replace(site, settings=settings)
    earlier = judged or begun
    sku = measured_sku(thresholds, settings, earlier) if earlier else settings.gpu_sku
    if judged is not None:
        return AcceptanceSession(
            site, thresholds, sku, cases_for(thresholds, sku, measured_layout(judged)), None, judged, resumed
        )
    cluster = find_cluster(settings, os.environ, plans_only=site.collect_only)
    no_devices_here = site.collect_only or cluster.is_elsewhere
    if sku == AUTO and cluster.is_elsewhere and not site.collect_only:
        raise SkuError(
            "--gpu-sku=auto", "the GPUs are on other machines", "their model", "Write --gpu-sku=b200, or as it is."
        )
    silent: list[SkuError] = []
    gpus = [] if needs_no_gpu(thresholds, sku, no_devices_here) else gpus_here(sku, silent)
    sku = resolve_sku(thresholds, sku, gpus, require_devices=not no_devices_here)
    if silent and thresholds.thresholds.skus[sku].checks.get("gpus") != "fail":  # which gives the node a verdict for it
        raise silent[0]
    kind = device_type(thresholds.thresholds.skus[sku])
    problems = [f"{error.where}: {error.found}" for error in silent]
    asked = gpus_asked(settings, cluster)
    wanted = settings
    if gpus and asked > len(gpus) and thresholds.thresholds.skus[sku].checks.get("gpus") == "fail":
        # A GPU that is gone is a fault of the node, which gets a verdict, and none of the command line.
        problems.append(f"{len(gpus)} GPUs are visible here, {asked} were asked for")
        wanted = replace(settings, gpus_per_node=None, world_sizes=None)
    per_node = devices_per_node(wanted, kind, len(gpus), collect_only=site.collect_only, cluster=cluster)
    if per_node is None and cluster.nodes > 1:  # only planned: the plan has to know how many ranks each node has
        per_node = _usual_devices(thresholds, sku)
    devices = None if per_node is None else per_node * cluster.nodes
    layout = (
        measured_layout(resumed.run) if resumed else Layout(cluster.nodes, per_node or _usual_devices(thresholds, sku))
    )
    return AcceptanceSession(
        site, thresholds, sku, cases_for(thresholds, sku, layout), devices, judged, resumed, cluster=cluster,
        gpus_asked=asked if wanted is not settings else None, silent=tuple(problems),
    )  # fmt: skip


def _usual_devices(thresholds: ThresholdsFile, sku: str) -> int:
    """GPUs of a node that nobody can look at."""
    node = thresholds.thresholds.skus[sku].node
    return (node.gpus if node else None) or USUAL_GPUS_PER_NODE


def _thresholds_path(site: Site) -> Path:
    if site.settings.thresholds is not None:
        return site.settings.thresholds
    here = [folder / DEFAULT_NAME for folder in (site.invocation_dir, site.rootdir)]
    return next((path for path in here if path.is_file()), None) or packaged(DEFAULT_NAME)
