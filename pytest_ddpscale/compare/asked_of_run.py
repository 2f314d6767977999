"""The question that a requirement asks of one run, and the per-round values that answer it, as in verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.judge.probes import values_of_probe
from pytest_ddpscale.judge.rounds import WHOLE
from pytest_ddpscale.judge.values import Why, groups_of, matching_study, of_launch
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict


class Series(NamedTuple):
    """Values of a place, in the order of the rounds; `error` is the relative error of a single imported sample."""

    values: FloatArray
    error: float = math.nan


# Per-round values by host; several series of one host are of its GPUs, or of pairs of them.
ByHost = Mapping[str, Sequence[Series]]
# The key of values that nodes measure together.
TOGETHER = ""


@dataclass(frozen=True)
class AskedOfRun:
    """A question to a run, or a probe of it.

    Attributes:
        why_not: why nothing answers it; empty if something can.
    """

    run: ComparedRun
    question: Question | None = None
    probe: Arm | None = None
    why_not: str = ""

    @property
    def workload(self) -> Workload | None:
        """The trained workload; None for a probe."""
        return self.question.workload if self.question else None

    def launches(self) -> list[ByHost]:
        """Values of each launch; probes are measured only in the first."""
        evidence = self.run.evidence
        if self.probe is not None:
            return [_of_probe(self.probe, evidence)]
        if self.question is None:
            return []
        return [_of_launch(self.question, launch) for launch in evidence.launches]


def asked_of(run: ComparedRun, verdict: Verdict) -> AskedOfRun:
    """The question behind one of the run's verdicts."""
    if verdict.outcome in ("not_measured", "error"):
        return AskedOfRun(run, why_not=f"{verdict.outcome.replace('_', ' ')}: {verdict.reason}")
    metric = METRICS[verdict.metric]
    if metric.subject == "probe":
        return AskedOfRun(run, probe=Arm(verdict.workload, verdict.world_size))
    studies = run.evidence.plan.studies
    named = [one for one in studies if one.scaling == metric.scaling and one.workload.name == verdict.workload]
    if not named:
        return AskedOfRun(run, why_not=f"{metric.scaling} scaling of {verdict.workload} was not measured")
    one_gpu = verdict.one_gpu or "alone"
    question = Question(metric, named[0].workload, verdict.world_size, verdict.placement, one_gpu)
    return AskedOfRun(run, question)


def _of_launch(question: Question, evidence: Evidence) -> ByHost:
    """Values of a launch. A constant of the SKU cancels in a ratio of two runs, so they are not divided by it."""
    study, values = matching_study(evidence.plan, question), of_launch(question, evidence)
    is_broken = values.broken[0] is not None and values.broken[0].why is not Why.ONE_NODE
    if study is None or is_broken:
        return {}
    errors = dict(zip(values.places, values.errors[0].tolist(), strict=True))
    found = {host: [Series(of_host, errors[host])] for host, of_host in values.items()}
    if WHOLE not in found:
        return found
    hosts = list(groups_of(question, study, evidence)[0].arms[-1].ranks.by_host)
    fits = len(hosts) == 1 and all(map(evidence.plan.layout.fits_node, question.arms))
    return {hosts[0] if fits else TOGETHER: found[WHOLE]}


def _of_probe(probe: Arm, evidence: Evidence) -> ByHost:
    found: dict[str, list[Series]] = {}
    for place, values in values_of_probe(probe, evidence).items():
        is_of_one_node = place.kind != "gang" and place.peer_host in (None, place.host)
        found.setdefault(place.host if is_of_one_node else TOGETHER, []).append(Series(values))
    return found
