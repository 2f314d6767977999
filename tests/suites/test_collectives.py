"""The sweep of collectives: what is swept, nccl-tests' numbers of the slowest place, and what is concluded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import COLLECTIVES
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.suites.collectives import Collectives, collective_rows, number_in_width, sizes_of
from pytest_ddpscale.suites.engine import MeasuredSuite, geometric_mean_estimate, tell
from pytest_ddpscale.suites.results import Results
from tests.approved import assert_approved
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import Value, measure_probe, probe_evidence, steady
from tests.builders.records import lines_of
from tests.rows import rows
from tests.suites.conftest import MeasuredAndTold
from tests.suites.planned import planned
from tests.suites.run_records import SUITE_RECORD, text_of

KIB, MIB = 2**10, 2**20
FAST = steady(600.0)
SHORT, BOUNDED = "--sizes=1KiB:4KiB", "--sizes=32MiB:64MiB:2"


def swept(*options: str, nodes: int = 1, gpus: int = 8, sku: str = "h100") -> Plan:
    where = (f"--gpu-sku={sku}", f"--ddp-hosts=n[0-{nodes - 1}]", "--ddp-exec=true {host}")
    return planned(Collectives(), *options, gpus=gpus, sku=where)


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


def first_row(*arguments: Any, **keys: Any) -> dict[str, Any]:
    return collective_rows(measured(*arguments, **keys))[0]


def test_a_fast_and_a_slow_machine_are_told_as_approved() -> None:
    """Columns are those of nccl-tests; of several nodes the slowest is the row."""
    fast = told(swept("--sizes=1KiB:1GiB:1024"))
    slow = told(swept("--sizes=1MiB:1GiB:1024", nodes=2), steady(200.0, {tuple(range(8, 16)): 60.0, (9, 12): 190.0}))
    assert_approved("suite-collectives.txt", text_of(fast, slow))
    sweep, bounds, pairs = (one.json() for one in slow.tables)
    assert {(row["place"], row["checked"]) for row in sweep if row["world_size"] == 8} == {("n1", 128)}
    assert (len(pairs), {bound["verdict"] for bound in bounds}) == (29, {"PASS", "FAIL"})


def test_a_value_is_the_geometric_mean_of_its_rounds_with_students_interval() -> None:
    gbps = [90.0, 110.0, 95.0, 105.0, 100.0, 98.0, 102.0, 101.0]
    row, one = (first_row(swept(SHORT), lambda number, ranks: gbps[number], rounds) for rounds in (8, 1))
    expected = geometric_mean_estimate(gbps, 0.95)
    assert row["bus_bw_gbps"].value == pytest.approx(expected.value)
    assert row["bus_bw_gbps"].interval == pytest.approx(expected.interval)
    ends = [1024 * 1.75 / gbps / 1e3 for gbps in reversed(expected.interval or ())]
    assert [*row["time_us"].interval] == pytest.approx(ends)
    assert (row["rounds"], one["rounds"], one["bus_bw_gbps"].interval, one["time_us"].interval) == (8, 1, None, None)
    added = first_row(swept(BOUNDED), lambda number, ranks: 100.0 if number < 8 else 500.0, 12)
    assert (added["rounds"], added["bus_bw_gbps"].value) == (8, pytest.approx(100)), "not those that decide a bound"


@rows(("value", "width", "text"), [
    (12.345, 7, "12.35"), (12345.678, 7, "12345.7"), (1234567.8, 7, "1234568"), (123456789.0, 7, "1.2e+08"),
    (0.004, 6, "0.00"), (1480.249, 6, "1480.2"), (12345678.0, 6, "1e+07"),
])  # fmt: skip
def test_numbers_take_the_width_that_nccl_tests_give_them(value: float, width: int, text: str) -> None:
    assert number_in_width(value, width) == text


def test_wrong_results_are_counted_over_ranks_and_rounds_and_fail_whatever_the_speed() -> None:
    def wrong(one: ProbeMeasurement) -> ProbeMeasurement:
        return replace(one, is_correct=one.probe != "broadcast-4kib" or one.rank != 5 or one.round > 2)

    found = told(swept(SHORT), spoil=wrong)
    assert list(found.failures) == ["broadcast over 8 ranks, 4 KiB: 3 wrong results of 64"]
    assert found.headline.endswith("; 3 wrong results")


SOME = tuple(f"reduce-{size}@8" for size in ("1kib", "4kib"))
SLOW = "n0: one iteration takes 3 s"
LARGE = "all-reduce-32mib@8"


@rows(("options", "keys", "problems"), [
    ([SHORT], {"without": SOME[1:], "unsupported": {SOME[1]: SLOW}}, []),  # left out by a limit
    ([SHORT], {"without": SOME, "unsupported": dict.fromkeys(SOME, SLOW)},
     [f"reduce over 8 ranks, 1 KiB, 4 KiB: {SLOW}"]),
    ([SHORT], {"without": SOME[1:]}, ["reduce over 8 ranks, 4 KiB: no complete round"]),
    ([BOUNDED], {"without": (LARGE,), "unsupported": {LARGE: SLOW}},
     [f"busbw_gbps[all-reduce-32mib-8gpu]: NOT MEASURED, {LARGE} could not be done: {SLOW}"]),
    ([SHORT], {"without": SOME, "errors": {"probes": "rank 3 died"}}, ["all or part of the sweep: rank 3 died"]),
    (["--sizes=1KiB:1KiB", "--operations=reduce"], {"lost": (12,)},
     ["reduce over 8 ranks of each of 2 nodes, 1 KiB: 1 of 2 nodes have no complete round",
      "reduce over 16 ranks, 1 KiB: no complete round"]),
])  # fmt: skip
def test_what_is_missing_is_a_problem_unless_a_limit_left_it_out(
    options: list[str], keys: dict[str, Any], problems: list[str]
) -> None:
    found = told(swept(*options, nodes=1 + ("lost" in keys)), **keys)
    assert list(found.problems) == problems
    assert problems or f"\n# not measured: reduce over 8 ranks, 4 KiB: {SLOW}\n" in text_of(found)


def test_bounds_are_those_of_the_plan_whatever_becomes_of_their_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record names a file with another digest, and the plan was written and read."""
    run = RunDirectory.create(tmp_path / "run")
    run.write_json(run.plan_json, swept("--operations=all-reduce"))
    found = measured(run.read_plan(), steady(200.0))
    assert tell(Collectives(), run, found) == 1
    assert [said.partition(",")[0] for said in told(run.read_plan(), steady(200.0)).failures] == [
        f"busbw_gbps[all-reduce-{size}-8gpu]: FAIL" for size in ("8gib", "32mib")
    ]
    assert capsys.readouterr().out.splitlines()[0].endswith("; all results right; 1 of 3 bounds met")


@rows(("gbps", "needed"), [(236.4, [LARGE]), (600.0, [])])
def test_what_its_bound_leaves_open_goes_on_after_the_sweep(gbps: float, needed: list[str]) -> None:
    plan, settings = swept(BOUNDED), SimpleNamespace(confidence=0.95)
    judge = Collectives().judge_of(plan, SimpleNamespace(settings=settings))  # type: ignore[arg-type]
    for record in lines_of(
        probed=[one for probe in probes_of(plan) for one in measure_probe(plan, probe, steady(gbps))]
    ):
        judge.hear(record)
    assert judge.needed_arms(PROBES) == needed


@pytest.mark.lab
def test_it_is_measured_reported_and_told_again(measured_and_told: MeasuredAndTold) -> None:
    # Sizes without a bound: how fast this machine is decides nothing.
    small = ("suite", "collectives", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-block=0.01s")
    run, told = measured_and_told(*small, "--sizes=1KiB:256KiB:256", "--iteration-limit=1m")
    found = json.loads(run.suite_json.read_text())["tables"]["collectives"]
    assert [(row["operation"], row["size_bytes"]) for row in found] == [
        (kind, size) for kind in COLLECTIVES for size in (KIB, 256 * KIB)
    ]
    assert {(row["wrong"], row["checked"], row["rounds"]) for row in found} == {(0, 16, 8)}
    assert all(row["size_bytes"] / row["time_us"]["value"] / 1e3 == pytest.approx(row["alg_bw_gbps"]) for row in found)
    assert "\n# all-to-all over 2 ranks\n" in told
    assert (run.path / "report.html").read_text().count("<img") == 1
    assert {one.name for one in run.plots.iterdir()} == {"sweep-2.png"}


@rows(("text", "sizes"), [
    ("1KiB:1GiB", [KIB * 4**i for i in range(11)]), ("1M:8m:2", [MIB, 2 * MIB, 4 * MIB, 8 * MIB]),
    ("512 KiB:1MB", [512 * KIB, MIB]), ("1k:10k", [KIB, 4 * KIB, 10 * KIB]), ("1M:1M", [MIB]),
    *((text, None) for text in (
        "", "1KiB:", "2MiB:1MiB", "1KiB:1GiB:1", "1KiB:1GiB:x", "1KiB:1TiB", "0KiB:1MiB", "1KiB:1GiB:4:4",
        "9999KiB:9999MiB:7",
    )),
])  # fmt: skip
def test_sizes_are_a_range_in_the_units_that_people_write(text: str, sizes: list[int] | None) -> None:
    if sizes is not None:
        assert [*sizes_of(text)] == sizes, "also the last, where the factor misses it"
        return
    with pytest.raises(ValueError, match=r"with whole KiB, MiB or GiB|expected 1 to 9999 whole KiB, MiB or GiB"):
        sizes_of(text)


def test_what_is_swept_is_as_approved() -> None:
    """Small ones first, as they foretell how long large ones take; pairs no larger than fills a link."""
    plans = {
        "usual": swept("--operations=broadcast,all-reduce"), "of these sizes": swept(BOUNDED),
        "on two nodes": swept(SHORT, nodes=2, gpus=2), "on four nodes": swept("--operations=reduce", nodes=4),
        "of one rank each": swept(SHORT, "--operations=reduce", nodes=4, gpus=1),
        "on two GPUs": swept("--operations=all-reduce", gpus=2),
        "on CPUs": swept("--operations=reduce", "--sizes=1MiB:64MiB:8", sku="cpu"),
        "at another pace": swept("--ddp-rounds=12", "--ddp-block=0.5s", "--iteration-limit=5s", "--operations=reduce"),
    }  # fmt: skip
    lines = list[str]()
    for what, plan in plans.items():
        assert plan.probes is not None
        study, bounds = plan.probes, [f"{one['requirement']['metric']}[{one['name']}]" for one in plan.requirements]
        lines += [
            f"{what}: {study.swept_rounds} of {study.rounds} rounds of {study.block_s:g} s, limit "
            f"{study.iteration_limit_s:g} s but for {', '.join(study.without_limit)}; bounds {', '.join(bounds)}"
        ]
        lines += [f"  {one.name}" for one in study.arms]  # fmt: skip
    assert_approved("suite-collectives-plans.txt", "\n".join(lines))
