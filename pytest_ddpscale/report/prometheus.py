"""metrics.prom: a judgement in Prometheus's text format, for node_exporter's textfile collector.

Names end in base units: ``_ratio`` for shares and factors, bytes for memory, seconds for times. Nothing is judged again
here. Import this only to render: prometheus_client imports an HTTP server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

from pytest_ddpscale.plan.workload import FAMILIES
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord, Rank
from pytest_ddpscale.run.run_json import RunRecord, in_utc
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.run.verdicts import Culprit, Judgement, RunOutcome, Verdict, VerdictOutcome
from pytest_ddpscale.util.printable import one_line

Labels = Mapping[str, object]
Samples = Iterable[tuple[Labels, float]]

RUN_OUTCOMES: tuple[RunOutcome, ...] = ("accepted", "accepted_with_waivers", "rejected", "incomplete", "partial")
VERDICT_OUTCOMES: tuple[VerdictOutcome, ...] = ("passed", "failed", "inconclusive", "not_measured", "error")
# Suffix of the metric's name, and the factor that converts a value to that unit.
_BASE_UNITS: dict[str, tuple[str, float]] = {
    "fraction": ("ratio", 1.0),
    "x": ("ratio", 1.0),
    **{f"{family.unit}/s": (f"{family.samples}_per_second", 1.0) for family in FAMILIES},
    "GiB": ("bytes", 2.0**30),
    "ms": ("seconds", 1e-3),
    "TFLOPS": ("flops_per_second", 1e12),
    "GB/s": ("bytes_per_second", 1e9),
    **{f"{family.unit}/J": (f"{family.samples}_per_joule", 1.0) for family in FAMILIES},
}
_BOUND_KINDS = {"at_least": "min", "at_most": "max"}


def render_prometheus(judgement: Judgement, run: RunRecord, gangs: Collection[GangRecord]) -> str:
    """The judgement of a run as metrics.prom."""
    return generate_latest(_Collector(judgement, run, gangs)).decode()


@dataclass(frozen=True)
class _Collector:
    """What prometheus_client asks for metric families."""

    judgement: Judgement
    run: RunRecord
    gangs: Collection[GangRecord]

    def collect(self) -> Iterator[Metric]:
        for name, documentation, samples in _families(self.judgement, self.run, self.gangs):
            # Each series once: node_exporter rejects a file with duplicates.
            series = {_texts(labels): number for labels, number in samples}
            family = Metric(f"ddpscale_{name}", documentation, "gauge")
            for texts, number in series.items():
                family.add_sample(family.name, dict(texts), number)
            if series:
                yield family


def _families(
    judgement: Judgement, run: RunRecord, gangs: Collection[GangRecord]
) -> Iterator[tuple[str, str, Samples]]:
    """Name, help text and samples of each family."""
    sku = {"sku": judgement.sku}
    counts = Counter(verdict.outcome for verdict in judgement.verdicts)
    simulated = judgement.simulated or run.is_simulated()
    yield (
        "run_outcome", "1 for the outcome of the run, 0 for all others.",
        [({**sku, "outcome": outcome}, outcome == judgement.outcome) for outcome in RUN_OUTCOMES],
    )  # fmt: skip
    yield "run_simulated", "1 if the run simulated a machine and measured none.", [(sku, simulated)]
    yield (
        "requirements", "Requirements of the run by outcome.",
        [({**sku, "outcome": outcome}, counts[outcome]) for outcome in VERDICT_OUTCOMES],
    )  # fmt: skip
    every = [(one, outcome) for one in judgement.verdicts for outcome in VERDICT_OUTCOMES]
    yield (
        "requirement_outcome", "1 for the outcome of the requirement, 0 for all others; waived failures are failed.",
        [({**_labels(one), "outcome": outcome}, outcome == one.outcome) for one, outcome in every],
    )  # fmt: skip
    for suffix in dict.fromkeys(base for base, _ in _BASE_UNITS.values()):
        yield from _numbers([one for one in judgement.verdicts if _BASE_UNITS[one.unit][0] == suffix], suffix)
    if simulated:  # there is no machine to blame or to date
        return
    yield "culprit_failures", "Requirements that block acceptance and name this culprit.", _culprits(judgement)
    if run.finished_at is not None:
        present = {host: ranks for host, ranks in ranks_by_host(gangs).items() if host not in run.left_out}
        yield from _timestamps(judgement, in_utc(run.finished_at).timestamp(), present)


def _numbers(verdicts: Iterable[Verdict], unit: str) -> Iterator[tuple[str, str, Samples]]:
    """Values, interval ends and bounds of verdicts in one base unit."""
    words = unit.replace("_", " ")
    values, limits, bounds = list[tuple[Labels, float]](), list[tuple[Labels, float]](), list[tuple[Labels, float]]()
    for one in verdicts:
        labels, (_, factor) = _labels(one), _BASE_UNITS[one.unit]
        values += [(labels, factor * one.value)] if one.value is not None else []
        if one.interval is not None:
            low, high = one.interval
            limits += [({**labels, "end": "low"}, factor * low), ({**labels, "end": "high"}, factor * high)]
        bounds += [({**labels, "kind": _BOUND_KINDS[key]}, factor * bound) for key, bound in one.bound.items()]
    yield f"requirement_value_{unit}", f"Point estimate of the requirement, {words}.", values
    yield f"requirement_limit_{unit}", f"Ends of the confidence interval of the value, {words}.", limits
    yield f"requirement_bound_{unit}", f"Bound that the value has to meet, {words}.", bounds


def _timestamps(
    judgement: Judgement, verdict_s: float, present: Mapping[str, Sequence[Rank]]
) -> Iterator[tuple[str, str, Samples]]:
    """When each device was last measured; nothing for a node that was left out."""
    of_run: Labels = {"sku": judgement.sku, "outcome": judgement.outcome}
    hosts = [({**of_run, "node": host}, [rank.place for rank in ranks]) for host, ranks in present.items()]
    yield (
        "node_last_verdict_timestamp_seconds", "End of this node's last judged run, in Unix time.",
        [(node, verdict_s) for node, _ in hosts],
    )  # fmt: skip
    yield (
        "gpu_last_verdict_timestamp_seconds", "End of this GPU's last judged run, in Unix time.",
        [({**node, "gpu": one.index, "uuid": one.uuid}, verdict_s) for node, places in hosts for one in places],
    )  # fmt: skip


def _culprits(judgement: Judgement) -> Samples:
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    for one in filter(judgement.is_blocked_by, judgement.verdicts):
        counts.update({_texts(_culprit_labels(culprit)) for culprit in one.accused})
    return [(dict(labels), number) for labels, number in sorted(counts.items())]


def _culprit_labels(one: Culprit) -> Labels:
    end, peer = (*one.places, Place(""))[:2]
    return {
        "kind": one.kind, "node": end.host, "gpu": end.index, "uuid": end.uuid, "peer_node": peer.host,
        "peer_gpu": peer.index, "certain": str(one.is_certain).lower(),
    }  # fmt: skip


def _labels(verdict: Verdict) -> Labels:
    return {
        "requirement": verdict.id, "metric": verdict.metric, "workload": verdict.workload,
        "world_size": verdict.world_size, "severity": verdict.severity, "waived": str(verdict.is_waived).lower(),
    }  # fmt: skip


def _texts(labels: Labels) -> tuple[tuple[str, str], ...]:
    """Labels as lines of text without control characters; what is not known is empty, which Prometheus leaves out."""
    return tuple((label, "" if value is None else one_line(str(value))) for label, value in labels.items())
