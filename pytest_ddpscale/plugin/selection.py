"""Maps test items to requirements, and reproduces the command-line options that selected them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.settings import OPTIONS

if TYPE_CHECKING:
    from pytest_ddpscale.thresholds.cases import AnyCase


def case_of(item: pytest.Item) -> AnyCase | None:
    """The requirement that an item judges; None if it judges none."""
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("requirement") if callspec is not None else None
    return case if hasattr(case, "requirement") else None


def uses(item: pytest.Item, fixture: str) -> bool:
    """Whether a test uses this plugin's fixture of that name, not one of its own project."""
    info: Any = getattr(item, "_fixtureinfo", None)
    fixtures: Any = info.name2fixturedefs.get(fixture, ()) if info is not None else ()
    return len(fixtures) > 0 and fixtures[-1].func.__module__ == f"{__package__}.fixtures"


def may_measure(item: pytest.Item) -> bool:
    """Whether measuring may happen in a test: it judges a requirement, or uses `run`."""
    return case_of(item) is not None or uses(item, "run")


def marked_metrics(definition: pytest.Function) -> set[str]:
    """The metrics that a test's marks name.

    Raises:
        pytest.UsageError: no metric is named, or an unknown one, so that a misspelling cannot go unnoticed.
    """
    from pytest_ddpscale.plan.metric_catalogue import METRICS

    marked = [name for mark in definition.iter_markers("requirement") for name in mark.args]
    unknown = [name for name in marked if str(name) not in METRICS]
    if marked and not unknown:
        return set(marked)
    found = f"is marked requirement({unknown[0]!r})" if unknown else "uses `requirement` without naming a metric"
    known = ", ".join(METRICS)
    raise pytest.UsageError(
        f"{definition.nodeid} {found}; expected @pytest.mark.requirement(METRIC) with one of {known}."
    )


def is_empty(item: pytest.Item | pytest.Collector) -> bool:
    """Whether pytest made this item for a metric without requirements."""
    params = getattr(getattr(item, "callspec", None), "params", ())
    if not isinstance(item, pytest.Item) or "requirement" not in params:
        return False
    return uses(item, "requirement") and case_of(item) is None


def asked_again(config: pytest.Config) -> dict[str, str]:
    """Options on the command line about how to measure and judge, by flag; empty for a switch."""
    again = [option for option in OPTIONS.values() if option.about != "one run"]
    values = {option.flag: getattr(config.option, option.name, None) for option in again}
    return {flag: "" if value is True else str(value) for flag, value in values.items() if value not in (None, False)}


def paths_again(config: pytest.Config) -> tuple[str, ...]:
    """Files and directories named on the command line, without test names."""
    if config.args_source != pytest.Config.ArgsSource.ARGS:
        return ()
    packages = ("--pyargs",) if config.option.pyargs else ()
    return (*packages, *dict.fromkeys(arg.partition("::")[0] for arg in config.args))
