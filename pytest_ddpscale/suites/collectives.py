"""`ddpscale suite collectives`: nccl-tests' operations over message sizes, on one node and on all nodes.

Sizes take turns in rounds in random order, and each result is checked. Operations and sizes with a bound in the SKU's
thresholds are judged by what the plan holds of them. Rows come from the bus bandwidth of each round, by place, like
verdicts; if several nodes measured the same at once, the row is the slowest node's. Algorithm bandwidth and time follow
by the definitions of nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): algbw = busbw / factor, time =
size / algbw.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.judge import Decider, judge
from pytest_ddpscale.judge.metrics import GIGA
from pytest_ddpscale.judge.stats import Estimate
from pytest_ddpscale.judge.values import values_of_probe
from pytest_ddpscale.launch.supervisor import Judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import COLLECTIVES, KINDS, probe_size, size_text
from pytest_ddpscale.plan.study import PROBES, Plan, ProbeStudy
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.report.digits import bound_text, limits_text, point_text
from pytest_ddpscale.report.figures import pair_bandwidths
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.report.words.verdicts import verdict_word
from pytest_ddpscale.settings import duration_s, one_of
from pytest_ddpscale.suites.engine import IN_ROUNDS, MeasuredSuite, Suite, SuiteNodes, geometric_mean_estimate
from pytest_ddpscale.suites.options import several
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows
from pytest_ddpscale.thresholds.cases import NodeCase, cases_for, cases_of, json_of
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.document import Line, Section
from pytest_ddpscale.util.printable import one_line

_UNIT_BYTES = {"k": 2**10, "m": 2**20, "g": 2**30}
USUAL_SIZES = "1KiB:1GiB"
# Factor between sizes: 4 gives eleven points from 1 KiB to 1 GiB; users of nccl-tests mostly use 2.
STEP_FACTOR = 4
# By device: largest message of pairs, which fills a link and is the same for all pairs, so that they are comparable;
# seconds of a block, which holds hundreds of small messages or a few large ones, short because there are many sizes;
# and seconds that one collective may take: on GPUs 1 GiB takes milliseconds over NVLink and a tenth of a second over a
# slow network; over gloo it takes seconds and a laptop's memory.
OF_DEVICE: dict[DeviceType, tuple[int, float, float]] = {"cuda": (2**28, 0.1, 2.0), "cpu": (2**22, 0.03, 0.1)}
_SIZE = "([0-9]{1,4}) ?([KMG])(?:i?B)?"
_RANGE = re.compile(f"{_SIZE}:{_SIZE}(?::([0-9]{{1,4}}))?", re.IGNORECASE)
_SIZES = "BEGIN:END or BEGIN:END:FACTOR, with whole KiB, MiB or GiB up to 9999 and a factor from 2 up"
_HOW = (
    "By the formulas of nccl-tests, for the slowest rank, of several nodes on the slowest. #wrong counts results, one "
    "per rank and round, that differ from the known values."
)
_JUDGED = "Judged with up to twice as many rounds, by intervals that are valid whenever measuring stops."
_COLUMNS = [
    Column("operation", "Operation"), Column("world_size", "Ranks"),
    Column("message", "message size", lambda size: size_text(int(size))), Column("time_us", "time (µs)", "{:.6g}"),
    Column("alg_bw_gbps", "algbw (GB/s)"), Column("bus_bw_gbps", "busbw (GB/s)", better=1),
    Column("wrong", "#wrong"), Column("rounds", "rounds"), Column("place", "slowest"),
    Column("why_not", "not measured"),
]  # fmt: skip
_OF_PAIRS = [Column("pair", "Pair"), Column("gbps", "GB/s", better=1)]
_OF_BOUNDS = [Column(name.lower(), name) for name in ("Requirement", "Value", "Limits", "Bound", "Verdict")]


class Collectives(Suite):
    """Sweep of collectives over message sizes."""

    name = "collectives"
    takes = IN_ROUNDS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for operations, sizes and their time limit."""
        add = adder(parser)
        add("--sizes", "BEGIN:END[:FACTOR]", sizes_of, f"message sizes; default: {USUAL_SIZES}:{STEP_FACTOR}, and all "
            "sizes with a bound in the thresholds")  # fmt: skip
        add("--operations", "A,B", several(one_of(*COLLECTIVES)), f"any of {', '.join(COLLECTIVES)}; default: all")
        add("--iteration-limit", "TIME", duration_s, "leave out sizes at which one operation takes longer, and all "
            "larger ones; default: 2s, on CPUs 0.1s")  # fmt: skip

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """One study of all probes, small messages first: every probe once per round, then up to as many rounds again
        for those with undecided requirements. Raises OptionError.
        """
        plan, subject, rounds = nodes.plan(), nodes.subject, nodes.pace.rounds
        layout, kinds, sizes = plan.layout, arguments.operations or COLLECTIVES, arguments.sizes
        if layout.world_size < 2:
            raise OptionError("--ddp-gpus-per-node", "found one rank", "at least 2: a collective needs others")
        cases = [
            case for case in cases_for(subject.thresholds, subject.sku, layout)
            if isinstance(case, NodeCase) and case.probe and not case.missing
            and case.world_size <= layout.world_size and case.probe.operation.kind in (*kinds, "send-recv")
            and not case.requirement.definition.compares_places  # which bounds no bandwidth
            and (not sizes or sizes[0] <= (case.probe.operation.message_bytes or 0) <= sizes[-1])
        ]  # fmt: skip
        sizes, required = sizes or sizes_of(USUAL_SIZES), {case.probe for case in cases if case.probe}
        pair_bytes, block_s, limit_s = OF_DEVICE[plan.device_type]
        operations = [(kind, size) for kind in kinds for size in sizes]
        operations.append(("send-recv", max((size for size in sizes if size <= pair_bytes), default=sizes[0])))
        # The ranks of one node test its own links, those of all nodes the network.
        of_ranks = {layout.ranks_per_node, layout.world_size} - {1}
        probes = required | {
            Arm(f"{kind}-{probe_size(size)}", ranks) for kind, size in operations for ranks in of_ranks
        }
        kind_of = [*KINDS].index
        in_order = sorted(
            probes, key=lambda arm: (arm.world_size, kind_of(arm.operation.kind), arm.operation.message_bytes or 0)
        )
        study = ProbeStudy(
            tuple(in_order), (1 + bool(required)) * rounds, nodes.settings.block_s or block_s,
            arguments.iteration_limit or limit_s, tuple(sorted({probe.name for probe in required})), rounds,
        )  # fmt: skip
        return replace(plan, probes=study, requirements=json_of(cases))

    def judge_of(self, plan: Plan, nodes: SuiteNodes) -> Judge:
        """Continue after the sweep's rounds until all bounds are decided."""
        return Decider(plan, cases_of(plan.requirements), nodes.settings.confidence)

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each operation, number of ranks and message size, and one for each bound and each pair."""
        evidence, plan = measured.evidence, measured.plan
        assert plan.probes is not None  # since it was planned
        rows = [_row(measured, arm, plan.probes.swept_rounds) for arm in plan.probes.arms
                if arm.operation.kind in COLLECTIVES]  # fmt: skip
        findings, problems, pairs, slowest = list[str](), list[str](), list[Row](), list[Line]()
        verdicts = [worded(judge(case, evidence, measured.confidence)) for case in cases_of(plan.requirements)]
        failures = [
            f"{row['group']}, {size_text(row['message'])}: {row['wrong']} wrong results of {row['checked']}"
            for row in rows if row.get("wrong")
        ]  # fmt: skip
        if measured_rows := [row for row in rows if row["bus_bw_gbps"]]:
            best = max(measured_rows, key=lambda row: (row["world_size"], row["bus_bw_gbps"].value))
            peak, wrong = best["bus_bw_gbps"].value, sum(row.get("wrong", 0) for row in rows)
            findings = [
                f"up to {peak:.3g} GB/s of bus bandwidth ({best['group']}, {size_text(best['message'])})",
                f"{wrong} wrong results" if wrong else "all results right",
            ]
        if why := measured.why_missing(PROBES):
            problems.append(f"all or part of the sweep: {one_line(why)}")
        else:  # a limit may leave out sizes, but not all of a group
            groups = {row["group"] for row in measured_rows}
            left_out = [row for row in rows if row["group"] in groups and row["probe"] in evidence.unsupported]
            problems += not_measured(row for row in rows if row["bus_bw_gbps"] or row not in left_out)
        for verdict in verdicts:
            if verdict.blocks():
                messages = problems if verdict.outcome == "not_measured" else failures
                messages.append(f"{verdict.id}: {verdict_word(verdict)}, {one_line(verdict.reason)}")
        if verdicts:
            findings.append(f"{sum(verdict.passed for verdict in verdicts)} of {len(verdicts)} bounds met")
        bounds = [
            {"requirement": verdict.id, "value": point_text(verdict), "limits": limits_text(verdict),
             "bound": bound_text(verdict),
             "verdict": verdict_word(verdict), "measured": verdict.value and Estimate(verdict.value, verdict.interval)}
            for verdict in verdicts
        ]  # fmt: skip
        sweep = Rows("collectives", "Sweep", _COLUMNS, rows, 3, [_HOW])
        curves = [
            replace(sweep, name=f"sweep-{ranks}", rows=[*theirs], drawn=Drawn(
                f"Bus bandwidth over {ranks} ranks", "message", ("bus_bw_gbps",), "operation"
            ))
            for ranks, theirs in groupby(rows, itemgetter("world_size"))
        ]  # fmt: skip
        for of, is_within in (("ranks of a node", True), ("neighbouring nodes", False)):
            of_pair = pair_bandwidths(evidence, within_nodes=is_within).items()
            theirs = [{"pair": " and ".join(names), "of": of, "gbps": gbps} for names, gbps in of_pair]
            pairs += theirs
            slowest += [
                Line(f"Slowest of {len(theirs)} pairs of {of}: {row['gbps']:.3g} GB/s ({row['pair']}), with both "
                     "directions active.")
                for row in sorted(theirs, key=itemgetter("gbps"))[:1]
            ]  # fmt: skip
        return Results(
            "Collectives", findings,
            [sweep, Rows("bounds", "Bounds", _OF_BOUNDS, bounds, notes=[_JUDGED]), Rows("pairs", "", _OF_PAIRS, pairs)],
            problems, failures, [Section("Pairs", slowest)], curves,
        )  # fmt: skip


def _row(measured: MeasuredSuite, probe: Arm, rounds: int) -> dict[str, Any]:
    """Of the slowest place; without rounds added to decide a bound: intervals with such optional stopping would be too
    narrow.
    """
    evidence, operation, ranks = measured.evidence, probe.operation, probe.world_size
    kind, message, places = operation.kind, operation.message_bytes, len(measured.plan.layout.groups_of_round(probe))
    row: dict[str, Any] = {
        "probe": probe.name, "operation": kind, "world_size": ranks, "message": message,
        "group": f"{kind} over {ranks} ranks" + f" of each of {places} nodes" * (places > 1),
        "size_bytes": message, "bus_bw_gbps": None,
    }  # fmt: skip
    measured_values, probed = values_of_probe(probe, evidence), evidence.probed(probe)
    first = measured_values.numbers < rounds
    of_places = dict(
        replace(
            measured_values, numbers=measured_values.numbers[first], samples=measured_values.samples[:, first]
        ).items()
    )
    if probed is None or not of_places:
        why = evidence.unsupported.get(probe.name) or measured.why_missing(PROBES)
        return row | {"why_not": why or "no complete round"}
    estimates = {
        place: geometric_mean_estimate(values.tolist(), measured.confidence) for place, values in of_places.items()
    }
    place = min(estimates, key=lambda estimate: (estimates[estimate].value, estimate.ranks))
    busbw, factor, size = estimates[place], operation.bus_factor(ranks), int(np.nanmax(probed.work))
    if len(of_places) < places:
        row["why_not"] = f"{places - len(of_places)} of {places} nodes have no complete round"
    return row | {
        "size_bytes": size, "time_us": size * factor / GIGA * 1e6 / busbw.value, "alg_bw_gbps": busbw.value / factor,
        "bus_bw_gbps": busbw, "wrong": int(probed.wrong.sum()), "checked": int(probed.present.sum()),
        "rounds": len(of_places[place]), "place": place.name,
    }  # fmt: skip


def not_measured(rows: Iterable[Row]) -> Iterator[str]:
    """A sentence for the sizes of one operation and number of ranks that lack a measurement for the same reason."""
    lacking = (row for row in rows if "why_not" in row)
    for (group, why), theirs in groupby(lacking, itemgetter("group", "why_not")):
        yield f"{group}, {', '.join(size_text(row['message']) for row in theirs)}: {one_line(why)}"


def sizes_of(text: str) -> tuple[int, ...]:
    """Parse ``1KiB:1GiB`` or ``1M:64M:2``: sizes in bytes, each `factor` times the one before, ending with the last.

    Raises:
        ValueError: it is of another form, or no probe's name has such a size.
    """
    match = _RANGE.fullmatch(text.strip())
    size, last = (int(match[at]) * _UNIT_BYTES[match[at + 1].lower()] if match else 0 for at in (1, 3))
    factor, sizes = int(match[5] or STEP_FACTOR) if match else 0, list[int]()
    if factor < 2 or not 0 < size <= last:
        raise ValueError(_SIZES)
    while size < last:
        probe_size(size)
        sizes.append(size)
        size *= factor
    return (*sizes, last)
