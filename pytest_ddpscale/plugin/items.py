"""What pytest's items are to a session: which requirement each judges, and what the hooks keep in pytest's stash."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.settings import OPTIONS, Settings, refuse_unread_variables

if TYPE_CHECKING:
    from pytest_ddpscale.run.run_json import RunRecord
    from pytest_ddpscale.run.verdicts import Blocker, Judgement
    from pytest_ddpscale.session.evidence import EvidenceSource
    from pytest_ddpscale.session.session import AcceptanceSession
    from pytest_ddpscale.thresholds.cases import AnyCase


class SessionState:
    """Data that hooks pass to later hooks."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.source: EvidenceSource | None = None  # see `source_of`
        self.session: AcceptanceSession | None = None  # see `session_of`
        self.refusal: pytest.UsageError | None = None  # error found during collection
        self.workers_refusal = ""  # error of an xdist worker
        self.spoiled: list[Blocker] = []  # items that were skipped, or failed for another reason than a verdict
        self.shown: list[str] = []  # names of blockers that an item shows as a failure
        self.judgement: Judgement | None = None  # set once the run is concluded
        self.record: RunRecord | None = None  # of the concluded run
        self.problems: list[str] = []  # errors of concluding or writing
        self.forgotten = ""  # why this run is missing in the history


STATE: pytest.StashKey[SessionState] = pytest.StashKey()
# With any of these options pytest runs no test, so nothing is measured or concluded.
_NOTHING_RUNS = ("collectonly", "showfixtures", "show_fixtures_per_test", "setuponly", "setupplan")
EMPTY = object()  # the parameter of a test whose metrics no requirement has


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise the user's mistakes as pytest.UsageError, which pytest shows without a traceback."""
    try:
        yield
    except BadInput as error:
        raise pytest.UsageError(str(error)) from None
    except OSError as error:  # a folder that this user may not enter, a name that is too long
        raise pytest.UsageError(f"{error.filename or 'a file'}: {error.strerror or error}.") from None


def source_of(config: pytest.Config) -> EvidenceSource:
    """The source of evidence, created when first needed; a session that only plans needs nothing else.

    Raises:
        pytest.UsageError: thresholds, SKU or options are invalid.
    """
    state = config.stash[STATE]
    if state.source is None:
        from pytest_ddpscale.session.evidence import find_source
        from pytest_ddpscale.session.open import Site

        refuse_options(config)
        invocation = tuple(sys.argv), nothing_runs(config), rerun_options(config), rerun_paths(config)
        with usage_errors():
            refuse_unread_variables(os.environ)
            state.source = find_source(Site(state.settings, config.rootpath, config.invocation_params.dir, *invocation))
    return state.source


def session_of(config: pytest.Config) -> AcceptanceSession:
    """The acceptance session, which judges. Raises as `source_of`."""
    state = config.stash[STATE]
    if state.session is None:
        from pytest_ddpscale.session.session import AcceptanceSession

        state.session = AcceptanceSession(source_of(config))
    return state.session


def nothing_runs(config: pytest.Config) -> bool:
    """Whether pytest only shows something and runs no test."""
    return any(getattr(config.option, name, False) for name in _NOTHING_RUNS)


def rerun_options(config: pytest.Config) -> dict[str, str]:
    """Options on the command line about how to measure and judge, by flag; empty for a switch."""
    again = [option for option in OPTIONS.values() if option.about != "one run"]
    given = {option.flag: getattr(config.option, option.name, None) for option in again}
    return {flag: "" if value is True else str(value) for flag, value in given.items() if value not in (None, False)}


def rerun_paths(config: pytest.Config) -> tuple[str, ...]:
    """Files and directories named on the command line, without test names."""
    if config.args_source != pytest.Config.ArgsSource.ARGS:
        return ()
    packages = ("--pyargs",) if config.option.pyargs else ()
    return (*packages, *dict.fromkeys(arg.partition("::")[0] for arg in config.args))


def asked_for(item: pytest.Item | pytest.Collector) -> object:
    """The parameter of a test's fixture `requirement`; None if it has none."""
    return getattr(getattr(item, "callspec", None), "params", {}).get("requirement")


def case_of(item: pytest.Item) -> AnyCase | None:
    """The requirement that an item judges; None if it judges none."""
    case: Any = asked_for(item)
    return case if hasattr(case, "requirement") else None


def uses(item: pytest.Item, fixture: str) -> bool:
    """Whether a test uses this plugin's fixture of that name, not one of its own project."""
    info: Any = getattr(item, "_fixtureinfo", None)
    definitions: Any = info and info.name2fixturedefs.get(fixture)
    return bool(definitions) and definitions[-1].func.__module__ == f"{__package__}.fixtures"


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
    raise pytest.UsageError(
        f"{definition.nodeid} {found}; expected @pytest.mark.requirement(METRIC) with one of {', '.join(METRICS)}."
    )


def refuse_options(config: pytest.Config) -> None:
    """Refuse options of other plugins with which no verdict could be trusted.

    Raises:
        pytest.UsageError: tests would run apart from each other, or without their assertions.
    """
    if hasattr(config, "workerinput") or config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise pytest.UsageError(
            "pytest-xdist is active with workers; expected one pytest process, "
            "as several would disturb each other. Run without -n, or with -p no:xdist."
        )
    if sys.flags.optimize and config.getoption("assertmode", "rewrite") == "plain":
        raise pytest.UsageError(
            "python -O with --assert=plain drops asserts, so no own test could fail. "
            "Run without -O, or without --assert=plain."
        )


def refuse_forks(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse pytest-forked for tests that measure. Raises pytest.UsageError."""
    if config.getoption("forked", None) or any(map(_is_forked, items)):
        raise pytest.UsageError(
            "pytest-forked is active, by --forked or a mark; expected one pytest process, "
            "as each would measure anew. Run without it."
        )


def _is_forked(item: pytest.Item) -> bool:
    return may_measure(item) and item.get_closest_marker("forked") is not None


def lift_time_limit(item: pytest.Item) -> None:
    """Keep pytest-timeout's general limit from the test that measures first, as all measuring is done in it.

    The plan has limits of its own. A mark of the site's, on the test itself, is kept. Without the plugin, the mark is
    unknown, which `--strict-markers` refuses.
    """
    is_limited = any(map(item.config.pluginmanager.hasplugin, ("timeout", "pytest_timeout")))  # its own name, and by -p
    if is_limited and may_measure(item) and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(0))
