"""`ddpscale suite collectives`: nccl-tests' operations over message sizes, on one node and on all nodes.

Sizes take turns in rounds in random order, and each result is checked. Operations and sizes with a bound in the SKU's
thresholds are judged. Rows come from the bus bandwidth of each round, by place, like verdicts; if several nodes
measured the same at once, the row is the slowest node's. Algorithm bandwidth and time follow by the definitions of
nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): algbw = busbw / factor, time = size / algbw.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_ddpscale.errors import OptionError, ThresholdsError
from pytest_ddpscale.judge.judge import Decider, judge
from pytest_ddpscale.judge.metrics import GIGA
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.judge.values import values_of_probe
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import COLLECTIVES, probe_size, size_text
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.report.charts import About, Cells
from pytest_ddpscale.report.digits import ABSENT, bound_text, limits_text, point_text
from pytest_ddpscale.report.figures import pair_bandwidths, pair_matrix
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.report.words.verdicts import verdict_word
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.session.open import load_unchanged
from pytest_ddpscale.settings import duration_s
from pytest_ddpscale.suites.engine import IN_ROUNDS, MeasuredSuite, Suite, SuiteNodes, geometric_mean_estimate
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows
from pytest_ddpscale.thresholds.cases import NodeCase, cases_for
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.document import Line, Listing, Section
from pytest_ddpscale.util.printable import one_line

if TYPE_CHECKING:
    from pytest_ddpscale.launch.supervisor import Judge

KIB, MIB, GIB = 2**10, 2**20, 2**30
SMALLEST_BYTES, LARGEST_BYTES = KIB, GIB
# Factor between sizes: 4 gives eleven points from 1 KiB to 1 GiB; users of nccl-tests mostly use 2.
STEP_FACTOR = 4
# Message size of pairs: large enough to fill a link, and the same for all pairs, so that they are comparable.
PAIR_BYTES: dict[DeviceType, int] = {"cuda": 256 * MIB, "cpu": 4 * MIB}
# A block holds hundreds of small messages or a few large ones; short, because there are many sizes.
SWEEP_BLOCKS_S: dict[DeviceType, float] = {"cuda": 0.1, "cpu": 0.03}
# Limit of one collective: on GPUs 1 GiB takes milliseconds over NVLink and a tenth of a second over a slow network;
# over gloo it takes seconds and a laptop's memory.
ITERATION_LIMITS_S: dict[DeviceType, float] = {"cuda": 2.0, "cpu": 0.1}
_SIZE = re.compile(r"([0-9]{1,4}) ?([KMG])(i?B)?", re.IGNORECASE)
_UNIT_BYTES = {"k": KIB, "m": MIB, "g": GIB}
_SIZES = "BEGIN:END or BEGIN:END:FACTOR, with whole KiB, MiB or GiB up to 9999 and a factor from 2 up"
_FP32_BYTES = 4
# For these operations, nccl-tests' `count` column has the elements of one rank, because ranks share the message.
_COUNTED_BY_RANK = ("all-gather", "reduce-scatter", "all-to-all")
_SUMMING = ("all-reduce", "reduce-scatter", "reduce")
_ROOTED = ("broadcast", "reduce")
# As printed by nccl-tests (src/util.cu: writeResultHeader, writeBenchmarkLineBody, getFloatStr).
_LINE = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>6}"
_FIRST = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "±", "rounds")
_SECOND = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "", "")
_HOW = (
    "By the formulas of nccl-tests, for the slowest rank, of several nodes on the slowest; ± is half of the interval "
    "over the rounds. #wrong counts results, one per rank and round, that differ from the known values."
)
_JUDGED = "Judged with up to twice as many rounds, by intervals that are valid whenever measuring stops."
_COLUMNS = [
    Column("operation", "Operation"), Column("world_size", "Ranks"),
    Column("message", "message size", lambda size: size_text(int(size))),
    Column("bus_bw_gbps", "busbw (GB/s)", better=1),
]  # fmt: skip


class Collectives(Suite):
    """Sweep of collectives over message sizes."""

    name = "collectives"
    takes = IN_ROUNDS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for operations, sizes and their time limit."""
        add, limits = adder(parser), ITERATION_LIMITS_S
        add("--sizes", "BEGIN:END[:FACTOR]", sizes_of, f"message sizes; default: {probe_size(SMALLEST_BYTES)}:"
            f"{probe_size(LARGEST_BYTES)}:{STEP_FACTOR}, and all sizes with a bound in the thresholds")  # fmt: skip
        add("--operations", "A,B", operations_of, f"any of {', '.join(COLLECTIVES)}; default: all")
        add("--iteration-limit", "TIME", duration_s, "leave out sizes at which one operation takes longer, and all "
            f"larger ones; default: {limits['cuda']:g}s, on CPUs {limits['cpu']:g}s")  # fmt: skip

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """One study of all probes. Raises OptionError."""
        plan, settings = nodes.empty_plan, nodes.settings
        if plan.layout.world_size < 2:
            raise OptionError("--ddp-gpus-per-node", "found one rank", "at least 2: a collective needs others")
        kinds = arguments.operations or COLLECTIVES
        sizes = arguments.sizes or message_sizes(SMALLEST_BYTES, LARGEST_BYTES)
        bounded = [case.probe for case in _bounded(nodes, plan.layout) if case.probe is not None]
        bounded = [
            one for one in bounded
            if one.operation.kind in (*kinds, "send-recv")
            and (not arguments.sizes or sizes[0] <= (one.operation.message_bytes or 0) <= sizes[-1])
        ]  # fmt: skip
        probes = sweep_probes(plan.layout, plan.device_type, sizes, kinds, bounded)
        rounds, limit_s = settings.rounds or FEWEST_ROUNDS, arguments.iteration_limit
        return replace(plan, probes=sweep_study(probes, plan.device_type, rounds, settings.block_s, limit_s, bounded))

    def judge_of(self, plan: Plan, nodes: SuiteNodes) -> Judge:
        """Continue after the sweep's rounds until all bounds are decided."""
        return Decider(plan, _bounded(nodes, plan.layout), nodes.settings.confidence)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each operation, number of ranks and message size, and one for each bound."""
        evidence, confidence = measured.evidence, measured.confidence
        rows = collective_rows(measured)
        cases, no_bounds = cases_of_run(measured.record, measured.plan)
        judged = [(case, worded(judge(case, evidence, confidence))) for case in cases]
        failed = {case.probe.name for case, verdict in judged if case.probe and verdict.outcome == "failed"}
        blocking = [(case, verdict) for case, verdict in judged if verdict.blocks()]
        failures = [
            f"{row['over']} gave {row['wrong']} wrong results of {row['checked']}" for row in rows if row["wrong"]
        ]
        failures += [
            f"{case.id}: {verdict_word(verdict)}, {one_line(verdict.reason)}"
            for case, verdict in blocking if verdict.outcome != "not_measured"
        ]  # fmt: skip
        problems = [*_problems(measured, rows)] + [
            f"{case.id}: {one_line(verdict.reason)}"
            for case, verdict in blocking if verdict.outcome == "not_measured"
        ]  # fmt: skip
        # What was not judged is not accepted.
        problems += [f"bounds: {one_line(no_bounds)}"] if no_bounds else []
        drawn = [row | {"is_missed": row["probe"] in failed} for row in rows]
        within, between = (pair_bandwidths(evidence, within_nodes=one) for one in (True, False))
        bounds = Rows("bounds", "Bounds", [
            Column("requirement", "Requirement"), Column("value", "Value"), Column("limits", "Limits"),
            Column("bound", "Bound"), Column("verdict", "Verdict"),
        ], [
            {"requirement": case.id, "value": point_text(one), "limits": limits_text(one), "bound": bound_text(one),
             "verdict": verdict_word(one), "outcome": one.outcome, "severity": one.severity,
             "measured": one.value and Found(one.value, one.interval),
             "bound_value": case.requirement.bound, "reason": one_line(one.reason)}
            for case, one in judged
        ], notes=[_JUDGED])  # fmt: skip
        sweep = Rows("collectives", "", _COLUMNS, drawn, 3)
        curves = [
            replace(
                sweep, name=f"sweep-{ranks}", rows=[row for row in drawn if row["world_size"] == ranks],
                drawn=Drawn(f"Bus bandwidth over {ranks} ranks", "message", ("bus_bw_gbps",), "operation"),
            ).picture()
            for ranks in dict.fromkeys(row["world_size"] for row in rows)
        ]  # fmt: skip
        lines = Section("As nccl-tests prints it", [Line(_HOW), Listing("\n".join(nccl_lines(rows)))])
        ranges = _range_of(within, "ranks of a node"), _range_of(between, "neighbouring nodes")
        pairs = Section("Pairs", [*map(Line, filter(None, ranges))])
        return Results(
            "Collectives", [*_findings(rows, judged)], [sweep, bounds], problems,
            failures, [lines, pairs],
            [*curves, pair_matrix(About("pairs-within", "Bandwidth between ranks of a node"), within),
             pair_matrix(About("pairs-between", "Bandwidth between nodes"), between)],
            {"pairs_within_nodes_gbps": _pairs(within), "pairs_of_nodes_gbps": _pairs(between)},
        )  # fmt: skip


def _bounded(nodes: SuiteNodes, layout: Layout) -> list[NodeCase]:
    return sweep_cases(nodes.subject.thresholds, nodes.subject.sku, layout)


def sweep_cases(thresholds: ThresholdsFile, sku: str, layout: Layout) -> list[NodeCase]:
    """Requirements of a SKU on collectives and pairs that this many ranks can measure."""
    return [
        case
        for case in cases_for(thresholds, sku, layout)
        if isinstance(case, NodeCase) and case.probe is not None and not case.missing
        if not case.requirement.definition.compares_places  # which bounds no bandwidth
        if case.probe.operation.kind in (*COLLECTIVES, "send-recv") and case.probe.world_size <= layout.world_size
    ]


def cases_of_run(record: RunRecord, plan: Plan) -> tuple[list[NodeCase], str]:
    """Requirements on a run's sweep, from the thresholds that it started with.

    Returns:
        The requirements, and why they could not be read (for example because the file changed); else empty.
    """
    used = record.thresholds
    if used is None or plan.probes is None:
        return [], "the run records no thresholds"
    try:
        thresholds = load_unchanged(used)
    except ThresholdsError as error:
        return [], f"{error.where} {error.found}"
    probes = set(plan.probes.arms)
    return [case for case in sweep_cases(thresholds, plan.sku, plan.layout) if case.probe in probes], ""


def collective_rows(measured: MeasuredSuite) -> list[dict[str, Any]]:
    """One row for each planned collective, in the plan's order."""
    study = measured.plan.probes
    assert study is not None  # of a sweep
    return [_row(measured, study, one) for one in study.arms if one.operation.kind in COLLECTIVES]


def _row(measured: MeasuredSuite, study: ProbeStudy, probe: Arm) -> dict[str, Any]:
    """Of the slowest place; without rounds added to decide a bound: intervals with such optional stopping would be too
    narrow.
    """
    evidence, operation, ranks = measured.evidence, probe.operation, probe.world_size
    message, expected = operation.message_bytes or 0, len(measured.plan.layout.groups_of_round(probe))
    row = {
        "probe": probe.name, "operation": operation.kind, "world_size": ranks, "message": message,
        "size_bytes": message, "redop": "sum" if operation.kind in _SUMMING else "none",
        "root": 0 if operation.kind in _ROOTED else -1,
        "over": f"{operation.kind} of {size_text(message)} over {ranks} ranks",
        "expected_places": expected, "bus_bw_gbps": None, "measured_places": 0, "wrong": 0, "why_not": "",
    }  # fmt: skip
    found, probed = values_of_probe(probe, evidence), evidence.probed(probe)
    first = found.numbers < (study.swept_rounds or study.rounds)
    of_places = dict(replace(found, numbers=found.numbers[first], samples=found.samples[:, first]).items())
    if probed is None or not of_places:
        why = evidence.unsupported.get(probe.name) or measured.why_missing(study.id)
        return row | {"why_not": why or "no complete round"}
    estimates = {
        place: geometric_mean_estimate(values.tolist(), measured.confidence) for place, values in of_places.items()
    }
    place = min(estimates, key=lambda one: (estimates[one].value, one.ranks))
    busbw, factor, size = estimates[place], operation.bus_factor(ranks), int(np.nanmax(probed.work))
    elements = size // _FP32_BYTES

    def time_us(bandwidth: float) -> float:
        return size / (bandwidth / factor * GIGA) * 1e6

    ends = busbw.interval and (time_us(busbw.interval[1]), time_us(busbw.interval[0]))
    return row | {
        "size_bytes": size, "count": elements // ranks if operation.kind in _COUNTED_BY_RANK else elements,
        "bus_bw_gbps": busbw, "alg_bw_gbps": busbw.value / factor, "time_us": Found(time_us(busbw.value), ends),
        "place": place.name, "host": place.host if place.kind == "node" else "", "measured_places": len(of_places),
        "rounds": len(of_places[place]), "wrong": int(probed.wrong.sum()), "checked": int(probed.present.sum()),
    }  # fmt: skip


def number_in_width(value: float, width: int) -> str:
    """A number with up to two decimals as they fit, else in scientific notation, as nccl-tests' getFloatStr writes."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.{1 if width >= 7 else 0}e}"


def cells(row: Row) -> tuple[str, ...]:
    """Cells of one measured row, in the order of nccl-tests, then half the interval and the rounds."""
    busbw, time = row["bus_bw_gbps"], row["time_us"]
    low, high = busbw.interval or (0, 0)
    return (
        str(row["size_bytes"]), str(row["count"]), "float", row["redop"], str(row["root"]),
        number_in_width(time.value, 7), number_in_width(row["alg_bw_gbps"], 6), number_in_width(busbw.value, 6),
        str(row["wrong"]),
        f"{50 * (high - low) / busbw.value:.1f} %" if busbw.interval else ABSENT, str(row["rounds"]),
    )  # fmt: skip


def heading(rows: Sequence[Row]) -> str:
    """Heading of one operation and world size: ``all-reduce over 8 ranks of each of 4 nodes, slowest node``."""
    first = rows[0]
    where, hosts = (
        f"{first['operation']} over {first['world_size']} ranks",
        [*filter(None, (r.get("host") for r in rows))],
    )
    if first["expected_places"] > 1:
        return f"{where} of each of {first['expected_places']} nodes, slowest node"
    return f"{where} of {one_line(hosts[0])}" if hosts else where


def _grouped(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows of one operation and world size at a time."""
    for _, theirs in groupby(rows, lambda row: (row["world_size"], row["operation"])):
        yield list(theirs)


def not_measured(rows: Sequence[Row]) -> Iterator[str]:
    """A sentence for each operation with unmeasured sizes, and one for each row that some nodes did not measure."""
    for theirs in _grouped(row for row in rows if row["why_not"]):
        sizes, first = ", ".join(size_text(row["message"]) for row in theirs), theirs[0]
        what = f"{first['operation']} of {sizes} over {first['world_size']} ranks"
        yield f"{what} was not measured: {one_line(first['why_not'])}"
    for row in rows:
        if not row["why_not"] and row["measured_places"] < row["expected_places"]:
            yield f"{row['over']} was measured on {row['measured_places']} of {row['expected_places']} nodes"


def nccl_lines(rows: Sequence[Row]) -> Iterator[str]:
    """The rows of a sweep as nccl-tests' text, with comments for everything that is not a measurement."""
    for theirs in _grouped(rows):
        yield f"# {heading(theirs)}"
        yield "#" + _LINE.format(*_FIRST)[1:].rstrip()
        yield "#" + _LINE.format(*_SECOND)[1:].rstrip()
        yield from (_LINE.format(*cells(row)).rstrip() for row in theirs if not row["why_not"])
        yield from (f"# {said}" for said in not_measured(theirs))
        yield "#"


def _problems(measured: MeasuredSuite, rows: Sequence[Row]) -> Iterator[str]:
    """Measurements that are missing without reason; sizes left out by a limit do not count."""
    assert measured.plan.probes is not None  # of a sweep
    if why := measured.why_missing(measured.plan.probes.id):
        yield f"all or part of the sweep: {one_line(why)}"
        return
    for theirs in _grouped(rows):
        if all(row["why_not"] for row in theirs):
            first = theirs[0]
            what = f"{first['operation']} over {first['world_size']} ranks, of any size"
            yield f"{what}: {one_line(first['why_not'])}"
    unsupported = measured.evidence.unsupported
    yield from not_measured([row for row in rows if not (row["why_not"] and row["probe"] in unsupported)])


def _findings(rows: Sequence[Row], judged: Sequence[Any]) -> Iterator[str]:
    """Peak bandwidth of the largest group, whether results were right, and bounds met."""
    there = [row for row in rows if not row["why_not"]]
    if there:
        best = max(there, key=lambda row: (row["world_size"], row["bus_bw_gbps"].value))
        wrong = sum(row["wrong"] for row in rows)
        yield f"up to {best['bus_bw_gbps'].value:.3g} GB/s of bus bandwidth ({best['over']})"
        yield "all results right" if not wrong else f"{wrong} wrong results"
    if judged:
        yield f"{sum(verdict.passed for _, verdict in judged)} of {len(judged)} bounds met"


def _range_of(pairs: Cells, noun: str) -> str:
    if not pairs:
        return ""
    slowest = min(pairs, key=lambda pair: pairs[pair])
    return (
        f"Pairs of {noun} ({len(pairs)}): from {pairs[slowest]:.3g} GB/s ({' and '.join(slowest)}) to "
        f"{max(pairs.values()):.3g} GB/s in each direction, with both directions active."
    )


def _pairs(pairs: Cells) -> list[dict[str, Any]]:
    return [{"pair": list(names), "gbps": gbps} for names, gbps in sorted(pairs.items())]


def sizes_of(text: str) -> tuple[int, ...]:
    """Parse ``1KiB:1GiB`` or ``1M:64M:2``. Raises ValueError."""
    try:
        first, last, *factor = text.split(":")
        matches = [_SIZE.fullmatch(part.strip()) for part in (first, last)]
        ends = [int(match[1]) * _UNIT_BYTES[match[2].lower()] if match else 0 for match in matches]
        found = message_sizes(*ends, *map(int, factor))
        for size in found:
            probe_size(size)
    except (ValueError, TypeError):
        raise ValueError(f"{_SIZES}, with END not less than BEGIN") from None
    return found


def operations_of(text: str) -> tuple[str, ...]:
    """Parse names of operations; each once, in the order of `COLLECTIVES`. Raises ValueError."""
    names = [name.strip().lower().replace("_", "-") for name in text.split(",")]
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown:
        raise ValueError(f"names among {', '.join(COLLECTIVES)}; {unknown[0]!r} is not one of them")
    return tuple(kind for kind in COLLECTIVES if kind in names)


def message_sizes(first: int, last: int, factor: int = STEP_FACTOR) -> tuple[int, ...]:
    """Sizes in bytes from the first to the last, each `factor` times the one before, ending with the last.

    Args:
        first: smallest size, a whole number of KiB.
        last: largest size, likewise; at least `first`.
        factor: at least 2.

    Raises:
        ValueError: an argument is invalid.
    """
    if first < 1 or last < first or factor < 2:
        raise ValueError(f"found {first} to {last} bytes by {factor}; expected ascending sizes and a factor from 2 up")
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return (*sizes, last)


def sweep_probes(
    layout: Layout, device_type: DeviceType, sizes: Sequence[int], kinds: Iterable[str] = COLLECTIVES,
    bounded: Iterable[Arm] = (),
) -> tuple[Arm, ...]:  # fmt: skip
    """One probe per operation, world size and message size, small messages first, and probes of rank pairs.

    Pairs send one size: the largest of the sweep up to `PAIR_BYTES`.

    Args:
        layout: of the gang.
        device_type: of the ranks.
        sizes: message sizes in bytes, ascending.
        kinds: the operations.
        bounded: additional probes that requirements need.

    Raises:
        ValueError: a size that probe names cannot express.
    """
    pair_bytes = max((size for size in sizes if size <= PAIR_BYTES[device_type]), default=sizes[0])
    asked = [*((kind, size) for kind in kinds for size in sizes), ("send-recv", pair_bytes)]
    sent = {f"{kind}-{probe_size(size)}" for kind, size in asked}
    # The ranks of one node test its own links, those of all nodes the network.
    world_sizes = {layout.ranks_per_node, layout.world_size} - {1}
    probes = {Arm(name, world_size) for name in sent for world_size in world_sizes}.union(bounded)
    order = (*COLLECTIVES, "send-recv")

    def in_order(probe: Arm) -> tuple[int, int, int]:
        found = probe.operation
        return probe.world_size, order.index(found.kind), found.message_bytes or 0

    return tuple(sorted(probes, key=in_order))


def sweep_study(
    probes: Sequence[Arm], device_type: DeviceType, rounds: int, block_s: float | None = None,
    iteration_limit_s: float | None = None, bounded: Iterable[Arm] = (),
) -> ProbeStudy:  # fmt: skip
    """The study of a sweep: every probe once per round, in random order; then up to as many rounds again for probes
    with undecided requirements.

    Args:
        probes: from `sweep_probes`.
        device_type: of the ranks.
        rounds: rounds of each probe.
        block_s: seconds of one probe in one round; default by device.
        iteration_limit_s: sizes whose single iteration takes longer are skipped, with larger ones; default by device.
        bounded: probes that requirements need, which have no such limit.
    """
    length_s, limit_s = block_s or SWEEP_BLOCKS_S[device_type], iteration_limit_s or ITERATION_LIMITS_S[device_type]
    required = tuple(sorted({probe.name for probe in bounded}))
    return ProbeStudy(tuple(probes), 2 * rounds if required else rounds, length_s, limit_s, required, rounds)
