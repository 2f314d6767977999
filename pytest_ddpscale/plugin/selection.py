"""From test functions to cases: which requirement an item judges, and the command that runs just that."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.plugin.active import SETTINGS, source_of
from pytest_ddpscale.plugin.fixtures import JudgeableRequirement
from pytest_ddpscale.settings import OPTIONS

if TYPE_CHECKING:
    from pytest_ddpscale.thresholds.cases import AnyCase


def case_of(item: pytest.Item) -> AnyCase | None:
    """The requirement that an item judges; None if it judges none."""
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("requirement") if callspec is not None else None
    return case if hasattr(case, "requirement") else None


def asks_for_requirement(item: pytest.Item) -> bool:
    """Whether a test asks for `requirement` of this plugin, and not for one of its own project."""
    info: Any = getattr(item, "_fixtureinfo", None)
    fixtures: Any = info.name2fixturedefs.get("requirement", ()) if info is not None else ()
    return len(fixtures) > 0 and fixtures[-1].func.__module__ == JudgeableRequirement.__module__


def marked_metrics(definition: pytest.Function) -> set[str]:
    """The metrics that a test's marks name.

    Raises:
        pytest.UsageError: none, or one that does not exist, so that a misspelt one cannot go unnoticed.
    """
    from pytest_ddpscale.plan.metric_catalogue import METRICS

    marked = [name for mark in definition.iter_markers("requirement") for name in mark.args]
    unknown = [name for name in marked if str(name) not in METRICS]
    if marked and not unknown:
        return set(marked)
    found = f"is marked requirement({unknown[0]!r})" if unknown else "asks for `requirement` and does not say of what"
    known = ", ".join(METRICS)
    raise pytest.UsageError(
        f"{definition.nodeid} {found}; expected @pytest.mark.requirement(METRIC) with one of {known}."
    )


def is_empty(item: pytest.Item) -> bool:
    """Whether pytest made this item for a metric without requirements."""
    callspec = getattr(item, "callspec", None)
    parametrized = callspec is not None and "requirement" in callspec.params and asks_for_requirement(item)
    return parametrized and case_of(item) is None


def rerun_command(item: pytest.Item) -> str:
    """The command that measures just this requirement again, from the directory pytest was started in."""
    from pytest_ddpscale.session.sources import THIS_MACHINE
    from pytest_ddpscale.util.masking import masked_arguments

    settings = item.config.stash[SETTINGS]
    source = source_of(item.config)
    command = ["pytest", f"--gpu-sku={source.subject.sku}"]
    if settings.thresholds is not None:
        command.append(f"--thresholds={settings.thresholds}")
    given = _given_again(item.config)
    machine, per_node = source.machine, settings.gpus_per_node
    cluster = machine.cluster
    if cluster.launcher != THIS_MACHINE.launcher:  # on other nodes, wherever the command is typed
        given = {"--ddp-launcher": cluster.launcher, "--ddp-nodes": str(cluster.nodes), **given}
        per_node = per_node or machine.per_node
    if per_node is not None:
        given["--ddp-gpus-per-node"] = str(per_node)
    command += [f"{flag}={value}" if value else flag for flag, value in given.items()]
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    return shlex.join(masked_arguments([*command, f"{path}::{item.name}"]))


def _given_again(config: pytest.Config) -> dict[str, str]:
    """What of the command line says how to measure: by flag, empty for a switch."""
    again = [option for option in OPTIONS.values() if option.about != "one run"]
    values = {option.flag: getattr(config.option, option.name, None) for option in again}
    return {flag: "" if value is True else str(value) for flag, value in values.items() if value not in (None, False)}
