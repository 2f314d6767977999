"""The software that a run names is that of its ranks, and of its nodes where they differ."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.report.coverage_text import software_versions
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.survey_record import Survey
from tests.builders.judgements import EVIDENCE, RUN


def surveyed(*drivers: str | None) -> Evidence:
    said = ({"driver": driver, "torch": "other"} for driver in drivers)
    return replace(EVIDENCE, surveys={f"n{i}": Survey(f"n{i}", 0.0, versions=one) for i, one in enumerate(said)})


def test_what_ranks_do_not_tell_comes_from_the_surveys() -> None:
    versions = software_versions(RUN, surveyed("570.1", "570.1", None))
    assert (versions["driver"], versions["torch"]) == ("570.1", EVIDENCE.versions["torch"])


def test_nodes_that_differ_are_counted() -> None:
    versions = software_versions(RUN, surveyed("565.3", "570.1", "570.1"))
    assert versions["driver"] == "570.1 (2 nodes), 565.3 (1 node)"
