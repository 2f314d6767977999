"""metrics.prom: a judgement in Prometheus's text format, for node_exporter's textfile collector.

Names end in base units: ``_ratio`` for shares and factors, bytes for memory, seconds for times. Nothing is judged again
here. Import this only to render: prometheus_client imports an HTTP server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import get_args

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

from pytest_ddpscale.families import FAMILIES
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.run_json import RunRecord, in_utc
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.run.verdicts import Culprit, Judgement, RunOutcome, Verdict, VerdictOutcome
from pytest_ddpscale.util.printable import one_line

Labels = Mapping[str, object]
Family = tuple[str, str, Sequence[tuple[Labels, float]]]  # the end of its name, its help text, what it holds

_BOUND_KINDS = {"at_least": "min", "at_most": "max"}


def _base_units() -> dict[str, tuple[str, float]]:
    """Suffix of the metric's name, and the factor that converts a value to that unit, by unit."""
    names = {family.unit: family.samples for family in FAMILIES.values()} | {"samples": "samples"}
    return {
        "fraction": ("ratio", 1.0),
        "x": ("ratio", 1.0),
        **{f"{unit}/s": (f"{samples}_per_second", 1.0) for unit, samples in names.items()},
        "GiB": ("bytes", 2.0**30),
        "ms": ("seconds", 1e-3),
        "TFLOPS": ("flops_per_second", 1e12),
        "GB/s": ("bytes_per_second", 1e9),
        **{f"{unit}/J": (f"{samples}_per_joule", 1.0) for unit, samples in names.items()},
    }


def render_prometheus(judgement: Judgement, run: RunRecord, gangs: Collection[GangRecord]) -> str:
    """The judgement of a run as metrics.prom."""

    class Collector:
        """What prometheus_client asks for metric families."""

        def collect(self) -> Iterator[Metric]:
            for name, documentation, samples in _families(judgement, run, gangs):
                # Each series once: node_exporter rejects a file with duplicates. What is not known is empty, which
                # Prometheus leaves out; text has no control characters.
                texts = ({k: "" if v is None else one_line(str(v)) for k, v in labels.items()} for labels, _ in samples)
                family = Metric(f"ddpscale_{name}", documentation, "gauge")
                for series, number in {
                    (*text.items(),): of[1] for text, of in zip(texts, samples, strict=True)
                }.items():
                    family.add_sample(family.name, dict(series), number)
                if samples:
                    yield family

    return generate_latest(Collector()).decode()


def _families(judgement: Judgement, run: RunRecord, gangs: Collection[GangRecord]) -> Iterator[Family]:
    sku, verdicts = {"sku": judgement.sku}, judgement.verdicts
    counts = Counter(verdict.outcome for verdict in verdicts)
    simulated = judgement.simulated or run.is_simulated()
    is_it = [({**sku, "outcome": outcome}, outcome == judgement.outcome) for outcome in get_args(RunOutcome)]
    yield "run_outcome", "1 for the outcome of the run, 0 for all others.", is_it
    yield "run_simulated", "1 if the run simulated a machine and measured none.", [(sku, simulated)]
    outcomes = get_args(VerdictOutcome)
    counted = [({**sku, "outcome": one}, counts[one]) for one in outcomes]
    yield "requirements", "Requirements of the run by outcome.", counted
    outcome_samples = [
        ({**_labels(verdict), "outcome": name}, name == verdict.outcome) for verdict in verdicts for name in outcomes
    ]
    help_text = "1 for the outcome of the requirement, 0 for all others; waived failures are failed."
    yield "requirement_outcome", help_text, outcome_samples
    of_verdicts = [(verdict, *_base_units()[verdict.unit]) for verdict in verdicts]
    for base in dict.fromkeys(base for base, _ in _base_units().values()):
        yield from _numbers([(verdict, factor) for verdict, unit, factor in of_verdicts if unit == base], base)
    if simulated:  # there is no machine to blame or to date
        return
    named = Counter[tuple[tuple[str, object], ...]]()
    for verdict in filter(judgement.is_blocked_by, verdicts):
        named.update({tuple(_who(culprit).items()) for culprit in verdict.accused})
    blamed = [(dict(who), number) for who, number in sorted(named.items(), key=str)]
    yield "culprit_failures", "Requirements that block acceptance and name this culprit.", blamed
    if run.finished_at is None:
        return
    ended_s, judged = in_utc(run.finished_at).timestamp(), {**sku, "outcome": judgement.outcome}
    hosts = {host: ranks for host, ranks in ranks_by_host(gangs).items() if host not in run.left_out}
    nodes = [({**judged, "node": host}, ended_s) for host in hosts]
    yield "node_last_verdict_timestamp_seconds", "End of this node's last judged run, in Unix time.", nodes
    places = [(host, rank.place) for host, ranks in hosts.items() for rank in ranks]
    gpus = [({**judged, "node": host, "gpu": place.index, "uuid": place.uuid}, ended_s) for host, place in places]
    yield "gpu_last_verdict_timestamp_seconds", "End of this GPU's last judged run, in Unix time.", gpus


def _numbers(verdicts: Iterable[tuple[Verdict, float]], unit: str) -> Iterator[Family]:
    """Values, interval ends and bounds of verdicts in one base unit."""
    rows = [(verdict, _labels(verdict), factor) for verdict, factor in verdicts]
    values = [(labels, factor * verdict.value) for verdict, labels, factor in rows if verdict.value is not None]
    limits = [
        ({**labels, "end": end}, factor * limit)
        for verdict, labels, factor in rows
        for end, limit in zip(("low", "high"), verdict.interval or (), strict=False)
    ]
    bounds = [
        ({**labels, "kind": _BOUND_KINDS[key]}, factor * bound)
        for verdict, labels, factor in rows
        for key, bound in verdict.bound.items()
    ]
    words = unit.replace("_", " ")
    yield f"requirement_value_{unit}", f"Point estimate of the requirement, {words}.", values
    yield f"requirement_limit_{unit}", f"Ends of the confidence interval of the value, {words}.", limits
    yield f"requirement_bound_{unit}", f"Bound that the value has to meet, {words}.", bounds


def _who(culprit: Culprit) -> Labels:
    end, peer = (*culprit.places, Place(""))[:2]
    return {
        "kind": culprit.kind, "node": end.host, "gpu": end.index, "uuid": end.uuid, "peer_node": peer.host,
        "peer_gpu": peer.index, "certain": str(culprit.is_certain).lower(),
    }  # fmt: skip


def _labels(verdict: Verdict) -> Labels:
    return {
        "requirement": verdict.id, "metric": verdict.metric, "workload": verdict.workload,
        "world_size": verdict.world_size, "severity": verdict.severity, "waived": str(verdict.is_waived).lower(),
    }  # fmt: skip
