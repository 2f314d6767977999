"""Other pytest plugins that decide where, how often or how long a test runs: refused, or kept from measuring."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from pytest_ddpscale.plugin.selection import may_measure

_TIMEOUT = ("timeout", "pytest_timeout")  # by its entry point, and by -p


class _Apart(NamedTuple):
    """An option that runs each test in a process or thread of its own, where each would measure anew.

    Attributes:
        plugins: names under which pytest knows its plugin.
        option: where the value is kept.
        mark: that does the same to one test; empty if none does.
    """

    distribution: str
    plugins: tuple[str, ...]
    option: str
    mark: str = ""


_APART = (
    _Apart("pytest-forked", ("pytest_forked",), "forked", "forked"),
    _Apart("pytest-isolate", ("pytest_isolate", "pytest_isolate.plugin"), "isolate", "isolate"),
    _Apart("pytest-parallel", ("parallel", "pytest_parallel"), "workers"),
    _Apart("pytest-parallel", ("parallel", "pytest_parallel"), "tests_per_worker"),
    _Apart("pytest-run-parallel", ("run-parallel", "pytest_run_parallel.plugin"), "parallel_threads"),
)


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
    for one in _APART:
        if _has(config, one.plugins) and str(config.getoption(one.option, None)) not in ("None", "False", "1"):
            flag = f"--{one.option.replace('_', '-')}"
            raise _refusal(one, f"active with {flag}", f"without {flag}")
    if sys.flags.optimize and config.getoption("assertmode", "rewrite") == "plain":
        raise pytest.UsageError(
            "python -O with --assert=plain drops every assert, so a site's own test could not fail. "
            "Run without -O, or without --assert=plain."
        )


def refuse_marks(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse the same of single tests that measure. Raises pytest.UsageError."""
    for one in _APART:
        if one.mark and _has(config, one.plugins):
            for item in filter(may_measure, items):
                if item.get_closest_marker(one.mark):
                    raise _refusal(one, f"asked for by the mark {one.mark!r} of {item.nodeid}", "without that mark")


def lift_time_limit(item: pytest.Item) -> None:
    """Keep pytest-timeout's general limit from the test that measures first, as all measuring is done in it.

    The plan has limits of its own. A mark of the site's, on the test itself, is kept. Without the plugin, the mark is
    unknown, which `--strict-markers` refuses.
    """
    if _has(item.config, _TIMEOUT) and may_measure(item) and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(0))


def _refusal(one: _Apart, found: str, instead: str) -> pytest.UsageError:
    return pytest.UsageError(
        f"{one.distribution} is {found}; expected one pytest process and thread, because all requirements are judged "
        f"on one measurement, and each process or thread would measure anew. Run {instead}."
    )


def _has(config: pytest.Config, names: tuple[str, ...]) -> bool:
    return any(map(config.pluginmanager.hasplugin, names))
