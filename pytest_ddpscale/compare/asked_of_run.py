"""The question that a requirement asks of one run, and the per-round values that answer it, as in verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.judge.answering_rounds import ALL_RANKS, rounds_of, values_of
from pytest_ddpscale.judge.answering_study import matching_study
from pytest_ddpscale.judge.probes import places
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict

# Per-round values by host; several series of one host are of its GPUs, or of pairs of them.
ByHost = Mapping[str, Sequence[PerRound]]
# The key of values that nodes measure together.
TOGETHER = ""
# The thresholds' reference and peak cancel in a ratio of two runs, so any number does.
_NUMBER = 1.0


@dataclass(frozen=True)
class AskedOfRun:
    """A question to a run, or a probe of it.

    Attributes:
        why_not: why nothing answers it; empty if something can.
    """

    run: ComparedRun
    question: Question | None = None
    probe: Probe | None = None
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
        return AskedOfRun(run, probe=Probe(verdict.workload, verdict.world_size))
    studies = run.evidence.plan.studies
    named = [one for one in studies if one.scaling == metric.scaling and one.workload.name == verdict.workload]
    if not named:
        return AskedOfRun(run, why_not=f"{metric.scaling} scaling of {verdict.workload} was not measured")
    one_gpu = verdict.one_gpu or "alone"
    question = Question(metric, named[0].workload, verdict.world_size, verdict.placement, one_gpu)
    return AskedOfRun(run, question)


def _of_launch(question: Question, evidence: Evidence) -> ByHost:
    study = matching_study(evidence.plan, question)
    if study is None or study.id in evidence.errors or study.id in evidence.interrupted:
        return {}
    values = values_of(question, study, evidence, _NUMBER, _NUMBER)
    if ALL_RANKS not in values:
        return {host: [of_host] for host, of_host in values.items()}
    hosts = list(rounds_of(question, study, evidence).measured.ranks.by_host)
    fits = len(hosts) == 1 and all(map(evidence.plan.layout.fits_node, question.arms))
    return {hosts[0] if fits else TOGETHER: [values[ALL_RANKS]]} if len(values[ALL_RANKS]) else {}


def _of_probe(probe: Probe, evidence: Evidence) -> ByHost:
    found: dict[str, list[PerRound]] = {}
    measured = evidence.probed(probe)
    for place, values in places(measured, probe, evidence.plan.layout).items():
        is_of_one_node = place.kind != "gang" and place.peer_host in (None, place.host)
        found.setdefault(place.host if is_of_one_node else TOGETHER, []).append(values)
    return found
