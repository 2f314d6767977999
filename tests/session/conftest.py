"""Sessions on machines of the tests' choosing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.report import charts
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session import evidence
from pytest_ddpscale.session import open as opening
from pytest_ddpscale.session.evidence import find_source
from pytest_ddpscale.session.open import Site
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.settings import settings_from
from tests.builders.sessions import THRESHOLDS, InstantGang, Open, not_drawn

WITH_CHECK = THRESHOLDS.replace("'^G$'}", "'^G$'}\n    requirements: [{check: gpus, severity: fail}]")
# A GPU that the driver lists and that does not answer.
LOST = SurveyedGpu(1, "", "", "", "", problem="GPU is lost", is_lost=True)


def told(judgement: Judgement) -> Iterator[str]:
    """A judgement with its verdicts, in words."""
    yield f"  {judgement.outcome}: {judgement.reason}; notes {[*judgement.notes]}"
    for verdict in judgement.verdicts:
        who = [
            f"{'surely' if culprit.is_certain else 'perhaps'} {culprit.kind} {culprit.host}"
            for culprit in verdict.culprits
        ]
        yield f"    {verdict.id}: {verdict.outcome} {verdict.value or 0:.3g}; {verdict.reason} {who} {[*verdict.notes]}"


@pytest.fixture
def gangs(monkeypatch: pytest.MonkeyPatch) -> list[InstantGang]:
    """Every launch of the test."""
    launches: list[InstantGang] = []
    monkeypatch.setattr(InstantGang, "launches", launches)
    monkeypatch.setattr(evidence, "Supervisor", InstantGang)
    return launches


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Decide what is here; by default there is no driver."""

    def has(*gpus: SurveyedGpu, has_driver: bool = False) -> None:
        found = Survey("here", 1.0, gpus=gpus, has_driver=has_driver)
        monkeypatch.setattr(opening, "gpus_here", lambda skus: opening.gpus_of(found, "", skus))

    has()
    return has


@pytest.fixture
def opened(tmp_path: Path, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open a session, on the CPU with two ranks unless options say otherwise."""
    monkeypatch.setattr(charts, "_drawn", not_drawn)  # drawing takes a third of a session
    path = tmp_path / "thresholds.yaml"
    path.write_text(THRESHOLDS, encoding="utf-8")

    def open_it(collect_only: bool = False, **options: Any) -> AcceptanceSession:
        if options.get("gpu_sku", "cpu") == "cpu" and "ddp_judge" not in options:
            options = {"ddp_gpus_per_node": "2", "ddp_rounds": str(FEWEST_ROUNDS), **options}
        options.setdefault("gpu_sku", "cpu")
        options.setdefault("ddp_run_dir", str(tmp_path / "run"))
        argv = "pytest", "--password", "hunter2"
        site = Site(settings_from(options, {}, {}), tmp_path, tmp_path, argv, collect_only=collect_only)
        return AcceptanceSession(find_source(site))

    return open_it


def begun(session: AcceptanceSession) -> AcceptanceSession:
    """About to measure, or judge, everything."""
    session.source.select(session.source.cases)
    session.source.open_run()
    return session


@pytest.fixture
def measuring(opened: Open, gangs: list[InstantGang]) -> AcceptanceSession:
    """A session about to measure everything, on two ranks."""
    return begun(opened())
