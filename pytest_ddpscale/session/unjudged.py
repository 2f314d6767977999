"""The verdicts of a run, even of one that was killed before it was judged."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_opening import read_judged
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session.open import find_source
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.session.sources import Site
from pytest_ddpscale.settings import settings_from


def judgement_of(run: RunDirectory, judged: RunDirectory | None = None) -> Judgement:
    """The contents of verdicts.json, or else a fresh judgement of the measurements; nothing is written.

    Args:
        run: the measured run.
        judged: the directory of its verdicts, if another one.

    Raises:
        BadInput: the run is broken or has changed since it was judged, or the thresholds file that it started with is
            gone or changed.
    """
    if (judged or run).verdicts_json.exists():
        return read_judged(run, judged or run)
    recorded = run.read_run().thresholds
    if recorded is None:
        raise _by_hand(run, "was never judged")
    options = {"ddp_judge": str(run.path), "thresholds": recorded.path}
    session = AcceptanceSession(find_source(Site(settings_from(options, {}, {}), Path(), Path())))
    if session.subject.thresholds.digests != recorded.digests:
        raise _by_hand(run, f"was never judged, and {recorded.path} has changed since the run started")
    session.source.select(session.source.cases)
    return session.conclude(interrupted=False, spoiled=())


def _by_hand(run: RunDirectory, found: str) -> RunDirectoryError:
    return RunDirectoryError(str(run.path), found, "verdicts", f"Judge it with `pytest --ddp-judge={run.path}`.")
