"""metrics.prom: a judgement in Prometheus's text format, for node_exporter's textfile collector.

Names end in base units: ``_ratio`` for shares and factors, bytes for memory, seconds for times. Nothing is judged again
here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from pytest_ddpscale.plan.workload import FAMILIES
from pytest_ddpscale.report import text
from pytest_ddpscale.run.counting import counted_groups
from pytest_ddpscale.run.run_json import RunRecord, in_utc
from pytest_ddpscale.run.verdicts import Culprit, Judgement, RunOutcome, Verdict, VerdictOutcome

Labels = dict[str, str]
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


def render_prometheus(judgement: Judgement, run: RunRecord) -> str:
    """The judgement of a run as metrics.prom."""
    return "".join(line + "\n" for line in _lines(judgement, run))


def _lines(judgement: Judgement, run: RunRecord) -> Iterator[str]:
    sku = {"sku": judgement.sku}
    simulated = judgement.simulated or run.is_simulated()
    yield from _family(
        "ddpscale_run_outcome",
        "1 for the outcome of the run, 0 for all others.",
        [({**sku, "outcome": outcome}, float(outcome == judgement.outcome)) for outcome in RUN_OUTCOMES],
    )
    yield from _family(
        "ddpscale_run_simulated", "1 if the run simulated a machine and measured none.", [(sku, float(simulated))]
    )
    counts = Counter(verdict.outcome for verdict in judgement.counted)
    yield from _family(
        "ddpscale_requirements",
        "Requirements of the run by outcome; a generation ratio counts with its throughput, as the worse of both.",
        [({**sku, "outcome": outcome}, float(counts[outcome])) for outcome in VERDICT_OUTCOMES],
    )
    yield from _family(
        "ddpscale_requirement_outcome",
        "1 for the outcome of the requirement, 0 for all others; waived failures are failed.",
        [
            ({**_labels(verdict), "outcome": outcome}, float(outcome == verdict.outcome))
            for verdict in judgement.verdicts
            for outcome in VERDICT_OUTCOMES
        ],
    )
    yield from _numbers(judgement)
    if simulated:  # there is no machine to blame or to date
        return
    yield from _family(
        "ddpscale_culprit_failures",
        "Requirements that block acceptance and name this culprit; a generation ratio counts with its throughput.",
        _culprits(judgement),
    )  # fmt: skip
    yield from _timestamps(judgement, run)


def _numbers(judgement: Judgement) -> Iterator[str]:
    """Values, interval ends and bounds, in one family per unit."""
    for suffix in dict.fromkeys(base for base, _ in _BASE_UNITS.values()):
        of_unit = [verdict for verdict in judgement.verdicts if _BASE_UNITS[verdict.unit][0] == suffix]
        words = suffix.replace("_", " ")
        yield from _family(
            f"ddpscale_requirement_value_{suffix}", f"Point estimate of the requirement, {words}.",
            [(_labels(one), _based(one, one.value)) for one in of_unit if one.value is not None],
        )  # fmt: skip
        yield from _family(
            f"ddpscale_requirement_limit_{suffix}", f"Ends of the confidence interval of the value, {words}.",
            [
                ({**_labels(one), "end": end}, _based(one, limit))
                for one in of_unit
                if one.interval is not None
                for end, limit in zip(("low", "high"), one.interval, strict=True)
            ],
        )  # fmt: skip
        yield from _family(
            f"ddpscale_requirement_bound_{suffix}", f"Bound that the value has to meet, {words}.",
            [
                ({**_labels(one), "kind": _BOUND_KINDS[key]}, _based(one, bound))
                for one in of_unit
                for key, bound in one.bound.items()
            ],
        )  # fmt: skip


def _timestamps(judgement: Judgement, run: RunRecord) -> Iterator[str]:
    """When each device was last measured; nothing for an unfinished run or a node that was left out."""
    if run.finished_at is None:
        return
    verdict_s = in_utc(run.finished_at).timestamp()
    of_run = {"sku": judgement.sku, "outcome": judgement.outcome}
    hosts = [host for host in run.hosts if host.host not in run.left_out]
    yield from _family(
        "ddpscale_node_last_verdict_timestamp_seconds",
        "End of this node's last judged run, in Unix time.",
        [({**of_run, "node": host.host}, verdict_s) for host in hosts],
    )
    yield from _family(
        "ddpscale_gpu_last_verdict_timestamp_seconds",
        "End of this GPU's last judged run, in Unix time.",
        [
            (
                {
                    **of_run,
                    "node": host.host,
                    "gpu": _label(device.index),
                    "uuid": device.uuid,
                },
                verdict_s,
            )
            for host in hosts
            for device in host.devices
        ],
    )


def _culprits(judgement: Judgement) -> Samples:
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    for group in counted_groups(judgement.verdicts):
        blocking = filter(judgement.is_blocked_by, group)
        counts.update({tuple(_culprit_labels(culprit).items()) for one in blocking for culprit in one.culprits})
    return [(dict(labels), float(number)) for labels, number in sorted(counts.items())]


def _culprit_labels(culprit: Culprit) -> Labels:
    labels = {
        "kind": culprit.kind,
        "node": culprit.host,
        "gpu": culprit.gpu_index,
        "uuid": culprit.gpu_uuid,
        "peer_node": culprit.peer_host,
        "peer_gpu": culprit.peer_gpu_index,
        "certain": str(culprit.is_certain).lower(),
    }
    return {name: _label(value) for name, value in labels.items()}


def _label(value: object) -> str:
    return "" if value is None else str(value)


def _labels(verdict: Verdict) -> Labels:
    return {
        "requirement": verdict.id,
        "metric": verdict.metric,
        "workload": verdict.workload,
        "world_size": str(verdict.world_size),
        "severity": verdict.severity,
        "waived": str(verdict.is_waived).lower(),
    }


def _based(verdict: Verdict, number: float) -> float:
    return number * _BASE_UNITS[verdict.unit][1]


def _family(name: str, help_text: str, samples: Samples) -> Iterator[str]:
    """One metric family, or nothing without samples.

    Of samples with equal labels only the first is written, because node_exporter rejects a file with duplicates.
    """
    first: dict[str, float] = {}
    for labels, number in samples:
        first.setdefault(",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items()), number)
    if not first:
        return
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} gauge"
    for written, number in first.items():
        yield f"{name}{{{written}}} {_number(number)}"


def _escaped(value: str) -> str:
    return text.one_line(value).replace("\\", "\\\\").replace('"', '\\"')


def _number(number: float) -> str:
    if math.isfinite(number):
        return repr(float(number))
    return "NaN" if math.isnan(number) else f"{'-' if number < 0 else '+'}Inf"
