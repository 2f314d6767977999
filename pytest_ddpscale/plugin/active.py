"""The acceptance session of a pytest run, and the hooks' data in pytest's stash."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.settings import Settings

if TYPE_CHECKING:
    from pytest_ddpscale.run.run_json import RunRecord
    from pytest_ddpscale.run.verdicts import Blocker, Judgement
    from pytest_ddpscale.session.evidence import EvidenceSource
    from pytest_ddpscale.session.session import AcceptanceSession

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
SOURCE: pytest.StashKey[EvidenceSource] = pytest.StashKey()
SESSION: pytest.StashKey[AcceptanceSession] = pytest.StashKey()


class Told:
    """Data that hooks pass to later hooks."""

    def __init__(self) -> None:
        self.refusal: pytest.UsageError | None = None  # error found during collection
        self.workers_refusal = ""  # error of an xdist worker
        self.spoiled: list[Blocker] = []  # items that were skipped, or failed for another reason than a verdict
        self.timed_out = ""  # which time-out ended a test that may have been measuring
        self.shown: list[str] = []  # names of blockers that an item shows as a failure
        self.judgement: Judgement | None = None  # set once the run is concluded
        self.record: RunRecord | None = None  # of the concluded run
        self.problems: list[str] = []  # errors of concluding or writing
        self.forgotten = ""  # why this run is missing in the history


TOLD: pytest.StashKey[Told] = pytest.StashKey()
# With any of these options pytest runs no test, so nothing is measured or concluded.
_NOTHING_RUNS = ("collectonly", "showfixtures", "show_fixtures_per_test", "setuponly", "setupplan")


def source_of(config: pytest.Config) -> EvidenceSource:
    """The source of evidence, created when first needed; a session that only plans needs nothing else.

    Raises:
        pytest.UsageError: thresholds, SKU or options are invalid.
    """
    if SOURCE not in config.stash:
        from pytest_ddpscale.plugin.other_plugins import refuse_options
        from pytest_ddpscale.plugin.selection import asked_again, paths_again
        from pytest_ddpscale.session.evidence import find_source
        from pytest_ddpscale.session.open import Site
        from pytest_ddpscale.settings import refuse_unread_variables

        refuse_options(config)
        site = Site(
            config.stash[SETTINGS],
            config.rootpath,
            Path(config.invocation_params.dir),
            tuple(sys.argv),
            nothing_runs(config),
            asked_again(config),
            paths_again(config),
        )
        try:
            refuse_unread_variables(os.environ)
            config.stash[SOURCE] = find_source(site)
        except BadInput as error:
            raise pytest.UsageError(str(error)) from None
        except OSError as error:  # a folder that this user may not enter, a name that is too long
            raise pytest.UsageError(f"{error.filename or 'a file'}: {error.strerror or error}.") from None
    return config.stash[SOURCE]


def session_of(config: pytest.Config) -> AcceptanceSession:
    """The acceptance session, which judges.

    Raises:
        pytest.UsageError: thresholds, SKU or options are invalid.
    """
    if SESSION not in config.stash:
        from pytest_ddpscale.session.session import AcceptanceSession

        config.stash[SESSION] = AcceptanceSession(source_of(config))
    return config.stash[SESSION]


def nothing_runs(config: pytest.Config) -> bool:
    """Whether pytest only shows something and runs no test."""
    return any(getattr(config.option, name, False) for name in _NOTHING_RUNS)
