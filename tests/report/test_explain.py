"""A failing item says everything that is needed to act on it."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.report.explain import explain
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.judgements import (
    FAILED,
    hostile_judgement,
)

WHERE = "thresholds.yaml:42"
RERUN = "pytest --gpu-sku=a100-sxm4-80gb 'test_scaling.py::test_throughput[r-8gpu]'"


def lines(verdict: Verdict) -> list[str]:
    return explain(verdict, WHERE, RERUN).splitlines()


def test_hostile_text_adds_no_line_and_moves_no_cursor() -> None:
    hostile = hostile_judgement().verdicts[0]
    found = lines(hostile)
    assert len(found) == len(lines(replace(FAILED, culprits=FAILED.culprits[:1])))
    assert all(line.isprintable() for line in found)
