"""The sweep of collectives: what is swept, nccl-tests' numbers of the slowest place, and what is concluded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.suites.collectives import Collectives, sizes_of
from pytest_ddpscale.suites.engine import MeasuredSuite, tell
from pytest_ddpscale.suites.results import Results
from tests.approved import assert_approved
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import Value, measure_probe, probe_evidence, steady
from tests.builders.records import lines_of
from tests.rows import rows
from tests.suites.planned import SUITE_RECORD, planned, text_of

FAST = steady(600.0)
SHORT, BOUNDED, REDUCE = "--sizes=1KiB:4KiB", "--sizes=32MiB:64MiB:2", "--operations=reduce"


def swept(options: str, nodes: int = 1, gpus: int = 8, sku: str = "h100") -> Plan:
    where = (f"--gpu-sku={sku}", f"--ddp-hosts=n[0-{nodes - 1}]", "--ddp-exec=true {host}")
    return planned(Collectives(), *options.split(), gpus=gpus, sku=where)


def probes_of(plan: Plan) -> Sequence[Arm]:
    assert plan.probes is not None
    return plan.probes.arms


def measured(
    plan: Plan, value: Value = FAST, rounds: int = 8, without: tuple[str, ...] = (), lost: tuple[int, ...] = (),
    spoil: Callable[[ProbeMeasurement], ProbeMeasurement] = lambda one: one, **keys: Any,
) -> MeasuredSuite:  # fmt: skip
    """Of a machine on which everything is as fast as `value` says."""
    probes = (one for one in probes_of(plan) if one.name not in without)
    found = [spoil(one) for probe in probes for one in measure_probe(plan, probe, value, rounds, lost)]
    return MeasuredSuite(probe_evidence(plan, found, **keys), 0.95, SUITE_RECORD)


def told(*arguments: Any, **keys: Any) -> Results:
    return Collectives().results(measured(*arguments, **keys))


def test_machines_are_told_as_approved() -> None:
    """Numbers are those of nccl-tests; of several nodes the slowest is the row. Wrong results fail at any speed."""
    gbps = 90.0, 110.0, 95.0, 105.0, 100.0, 98.0, 102.0, 101.0
    slow = steady(200.0, {tuple(range(8, 16)): 60.0, (9, 12): 190.0})
    found = [
        told(swept("--sizes=1KiB:1GiB:1024")), told(swept("--sizes=1MiB:1GiB:1024", nodes=2), slow),
        *(told(swept(f"{SHORT} {REDUCE}"), lambda number, ranks: gbps[number], rounds) for rounds in (8, 1)),
        # The last four rounds decide a bound, and are no part of the row.
        told(swept(f"{BOUNDED} --operations=all-reduce"), lambda number, _: 100.0 if number < 8 else 500.0, 12),
        told(swept(f"{SHORT} {REDUCE}"), spoil=lambda one: replace(one, is_correct=one.rank != 5 or one.round > 2)),
    ]  # fmt: skip
    assert_approved("suite-collectives.txt", text_of(*found) + "\n".join(one.tables[0].csv() for one in found))


SOME = tuple(f"reduce-{size}@8" for size in ("1kib", "4kib"))
SLOW = "n0: one iteration takes 3 s"
LARGE = "all-reduce-32mib@8"


def test_what_is_missing_is_a_problem_unless_a_limit_left_it_out() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        (SHORT, {"without": SOME[1:], "unsupported": {SOME[1]: SLOW}}),  # left out by a limit
        (SHORT, {"without": SOME, "unsupported": dict.fromkeys(SOME, SLOW)}), (SHORT, {"without": SOME[1:]}),
        (BOUNDED, {"without": (LARGE,), "unsupported": {LARGE: SLOW}}),
        (SHORT, {"without": SOME, "errors": {"probes": "rank 3 died"}}),
        (f"--sizes=1KiB:1KiB {REDUCE}", {"lost": (12,)}),
    ]  # fmt: skip
    lines = list[str]()
    for options, keys in cases:
        found = told(swept(options, nodes=1 + ("lost" in keys)), **keys)
        lacking = (f"{row['probe']}: {row['why_not']}" for row in found.tables[0].rows if "why_not" in row)
        lines += [f"{options}, {keys}:", *found.problems, *lacking, ""]
    assert_approved("suite-collectives-missing.txt", "\n".join(lines))


def test_bounds_are_those_of_the_plan_whatever_becomes_of_their_file(tmp_path: Path) -> None:
    """The record names a file with another digest, and the plan was written and read."""
    run, plan = RunDirectory.create(tmp_path / "run"), swept("--operations=all-reduce")
    run.write_json(run.plan_json, plan)
    found = measured(run.read_plan(), steady(200.0))
    assert tell(run, Collectives(), found) == 1
    again = Collectives().results(found)
    assert again.failures
    assert text_of(again) == text_of(told(plan, steady(200.0)))


@rows(("gbps", "needed"), [(236.4, [LARGE]), (600.0, [])])
def test_what_its_bound_leaves_open_goes_on_after_the_sweep(gbps: float, needed: list[str]) -> None:
    plan, settings = swept(BOUNDED), SimpleNamespace(confidence=0.95)
    judge = Collectives().judge_of(plan, SimpleNamespace(settings=settings))  # type: ignore[arg-type]
    for record in lines_of(
        probed=[one for probe in probes_of(plan) for one in measure_probe(plan, probe, steady(gbps))]
    ):
        judge.hear(record)
    assert judge.needed_arms(PROBES) == needed


SIZES = ("1KiB:1GiB", "1M:8m:2", "512 KiB:1MB", "1k:10k", "1M:1M", "", "1KiB:", "2MiB:1MiB", "1KiB:1GiB:1",
         "1KiB:1GiB:x", "1KiB:1TiB", "0KiB:1MiB", "1KiB:1GiB:4:4", "9999KiB:9999MiB:7")  # fmt: skip
PLANS = [
    ("--operations=broadcast,all-reduce",), (BOUNDED,), (SHORT, 2, 2), (REDUCE, 4), (f"{SHORT} {REDUCE}", 4, 1),
    ("--operations=all-reduce", 1, 2), (f"{REDUCE} --sizes=1MiB:64MiB:8", 1, 8, "cpu"),
    (f"--ddp-rounds=12 --ddp-block=0.5s --iteration-limit=5s {REDUCE}",),
]  # fmt: skip


def test_what_is_swept_is_as_approved() -> None:
    """Small ones first, as they foretell how long large ones take; pairs no larger than fills a link.

    Sizes are a range in the units that people write, with the last where the factor misses it.
    """
    lines = list[str]()
    for case in PLANS:
        study, required = (plan := swept(*case)).probes, plan.requirements  # type: ignore[arg-type]
        assert study is not None
        lines += [
            f"{case}: {study.swept_rounds} of {study.rounds} rounds of {study.block_s:g} s, limit "
            f"{study.iteration_limit_s:g} s but for {', '.join(study.without_limit)}; bounds "
            f"{', '.join('{metric}[{name}]'.format(**one['requirement'] | one) for one in required)}",
            *(f"  {arm.name}" for arm in study.arms),
        ]  # fmt: skip
    for text in SIZES:
        try:
            found: object = [*sizes_of(text)]
        except ValueError as error:
            found = error
        lines.append(f"{text}: {found}")
    assert_approved("suite-collectives-plans.txt", "\n".join([*lines, ""]))
