"""Other pytest plugins that decide where, how often or how long a test runs: refused, or kept from measuring."""

from __future__ import annotations

import sys

import pytest

from pytest_ddpscale.plugin.selection import may_measure

_TIMEOUT = ("timeout", "pytest_timeout")  # by its entry point, and by -p
_FORKED = ("pytest_forked",)


def refuse_options(config: pytest.Config) -> None:
    """Refuse options with which no verdict could be trusted.

    Raises:
        pytest.UsageError: tests would run apart from each other, or without their assertions.
    """
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise pytest.UsageError(
            "pytest-xdist is active with workers; expected one pytest process, because measurements of several would "
            "disturb each other. Run without -n (torchrun starts the ranks), or with -p no:xdist."
        )
    if _has(config, _FORKED) and config.getoption("forked", None):
        raise _refusal("active with --forked", "without --forked")
    if sys.flags.optimize and config.getoption("assertmode", "rewrite") == "plain":
        raise pytest.UsageError(
            "python -O with --assert=plain drops every assert, so a site's own test could not fail. "
            "Run without -O, or without --assert=plain."
        )


def refuse_marks(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse the same of single tests that measure. Raises pytest.UsageError."""
    if _has(config, _FORKED):
        for item in filter(may_measure, items):
            if item.get_closest_marker("forked"):
                raise _refusal(f"asked for by the mark 'forked' of {item.nodeid}", "without that mark")


def lift_time_limit(item: pytest.Item) -> None:
    """Keep pytest-timeout's general limit from the test that measures first, as all measuring is done in it.

    The plan has limits of its own. A mark of the site's, on the test itself, is kept. Without the plugin, the mark is
    unknown, which `--strict-markers` refuses.
    """
    if _has(item.config, _TIMEOUT) and may_measure(item) and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(0))


def _refusal(found: str, instead: str) -> pytest.UsageError:
    return pytest.UsageError(
        f"pytest-forked is {found}; expected one pytest process, because all requirements are judged on one "
        f"measurement, and each process would measure anew. Run {instead}."
    )


def _has(config: pytest.Config, names: tuple[str, ...]) -> bool:
    return any(map(config.pluginmanager.hasplugin, names))
