"""Anomalies of devices: flags, notes, utilization that proves nothing, and ranks that were held down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.judge.devices import device_notes, mean_power_w
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.stragglers import Straggler, find_stragglers, with_held_down
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu
from pytest_ddpscale.run.verdicts import Culprit, Verdict
from tests.builders.judged import CONFIDENCE, make_case, make_evidence, make_measurements
from tests.builders.measurements import Measurement
from tests.builders.nodes_checked import spread
from tests.builders.telemetry import Telemetry, columns_of_telemetry, flags_of
from tests.judge.nodes import measure_nodes, nodes_evidence, plan_of_nodes
from tests.judge.test_stragglers import LIMIT, rank_of, slow_in
from tests.rows import rows

NOTHING = Telemetry("weak/r", "ddp@8", 0, 0, 0, "n", "GPU-a", started_unix_s=1000.0, ended_unix_s=1002.0)
HEALTHY = altered(
    NOTHING, utilization=spread(0.98), power_w=spread(480.0), power_limit_w=700.0, idle_power_w=70.0,
    sm_clock_mhz=spread(1700.0), sm_clock_max_mhz=1980.0, throttle_reasons={"sw_power_cap": 1.0},
)  # fmt: skip


def flags_with(**changes: Any) -> tuple[str, ...]:
    return flags_of(altered(HEALTHY, **changes))


def power_of(window: Telemetry) -> float:
    return float(mean_power_w(columns_of_telemetry([window]))[0])


def test_a_gpu_at_its_power_limit_is_healthy() -> None:
    assert flags_of(HEALTHY) == ()


def test_what_cannot_be_read_raises_no_flag() -> None:
    assert flags_of(NOTHING) == ()
    assert flags_of(altered(NOTHING, utilization=spread(1.0))) == ()


@rows(("power_w", "expected"), [(130.0, ("stalled",)), (220.0, ("stalled",)), (235.0, ())])
def test_busy_at_nearly_idle_power_is_stalled(power_w: float, expected: tuple[str, ...]) -> None:
    assert flags_with(utilization=spread(1.0), power_w=spread(power_w)) == expected


@rows(("power_w", "expected"), [(205.0, ("stalled",)), (215.0, ())])
def test_without_a_known_idle_power_the_limit_decides(power_w: float, expected: tuple[str, ...]) -> None:
    assert flags_with(power_w=spread(power_w), idle_power_w=None) == expected


def test_idle_power_that_cannot_be_is_not_divided_by() -> None:
    assert flags_with(power_w=spread(120.0), idle_power_w=700.0) == ("stalled",)


def test_working_sms_are_no_stall_whatever_the_power() -> None:
    assert flags_with(power_w=spread(130.0), sm_activity=spread(0.7)) == ()
    assert flags_with(power_w=spread(130.0), sm_activity=spread(0.1)) == ("stalled",)


def test_a_low_clock_explains_low_power() -> None:
    assert flags_with(power_w=spread(130.0), sm_clock_mhz=spread(345.0)) == ("slow_clock",)


def test_power_comes_from_the_energy_counter_where_there_is_one() -> None:
    # Samples still show the second before the block.
    lagging = altered(HEALTHY, power_w=spread(150.0), energy_j=960.0, sources={"energy_j": "counter"})
    assert power_of(lagging) == 480.0
    assert flags_of(lagging) == ()
    assert power_of(altered(lagging, sources={"energy_j": "power"})) == 150.0


@rows(("utilization", "expected"), [(0.79, ("idle",)), (0.8, ()), (0.0, ("idle",))])
def test_under_80_per_cent_is_idle(utilization: float, expected: tuple[str, ...]) -> None:
    assert flags_with(utilization=spread(utilization)) == expected


def test_a_gpu_that_idles_is_not_said_to_stall_or_to_be_slow() -> None:
    assert flags_with(utilization=spread(0.1), power_w=spread(72.0), sm_clock_mhz=spread(345.0)) == ("idle",)


@rows("reason", ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"])
def test_hardware_and_heat_throttle(reason: str) -> None:
    assert flags_with(throttle_reasons={reason: 0.1}) == ("throttled",)
    assert flags_with(throttle_reasons={reason: 0.05}) == ()


@rows("reason", ["sw_power_cap", "gpu_idle", "applications_clocks_setting", "sync_boost"])
def test_other_reasons_are_no_fault(reason: str) -> None:
    assert flags_with(throttle_reasons={reason: 1.0}) == ()


@rows(("clock_mhz", "expected"), [(980.0, ("slow_clock",)), (1000.0, ())])
def test_half_the_clock_under_load_is_slow(clock_mhz: float, expected: tuple[str, ...]) -> None:
    assert flags_with(sm_clock_mhz=spread(clock_mhz)) == expected


def test_several_flags_come_in_one_order() -> None:
    changes = {"sm_clock_mhz": spread(345.0), "throttle_reasons": {"hw_power_brake_slowdown": 1.0}}
    assert flags_with(**changes) == ("throttled", "slow_clock")


CASE = make_case("device_utilization", 0.9)
ROUNDS = 8
MEASURED = make_measurements(CASE, [0.99] * ROUNDS)
STALLED_TEXT = "99 % busy, 95 W of 700 W, 1900 MHz of 1980 MHz"
POWER_UNKNOWN = "power unknown: utilization could not be cross-checked"
Change = Callable[[Telemetry], dict[str, Any]]


STALLED: dict[str, Any] = {"power_w": spread(95.0), "sm_clock_mhz": spread(1900.0)}
THROTTLED: dict[str, Any] = {"throttle_reasons": {"hw_thermal_slowdown": 0.5}}


def telemetry_of(measured: Sequence[Measurement], change: Change = lambda one: {}) -> list[Telemetry]:
    """What healthy GPUs would say in each of these blocks, changed."""
    healthy = [
        Telemetry(
            one.study, one.arm, one.round, one.rank, one.local_rank, one.host, one.device,
            started_unix_s=one.started_unix_s, ended_unix_s=one.started_unix_s + one.block_s, polls=10,
            utilization=spread(0.99), power_w=spread(600.0), power_limit_w=700.0,
            idle_power_w=75.0, sm_clock_mhz=spread(1700.0), sm_clock_max_mhz=1980.0, throttle_reasons={},
        )
        for one in measured
    ]  # fmt: skip
    return [altered(one, **change(one)) for one in healthy]


def rank_1(changes: dict[str, Any], rounds: int = ROUNDS) -> Change:
    """In so many rounds."""
    return lambda one: changes if one.rank == 1 and one.round < rounds else {}


def evidence(change: Change = lambda one: {}, measured: Sequence[Measurement] = MEASURED) -> Evidence:
    return replace(make_evidence(CASE, measured), telemetry=columns_of_telemetry(telemetry_of(measured, change)))


def judged(change: Change) -> Verdict:
    return judge(CASE, evidence(change), CONFIDENCE)


def test_of_utilization_that_was_not_read_it_is_said_why() -> None:
    why = "0 % busy, although it drew 390 W of 400 W"
    unread = {"utilization": None, "unreadable": {"utilization": why}}
    for rounds, outcome, reason in (
        (ROUNDS, "not_measured", f"device_utilization could not be read on every rank: GPU 1 on node1: {why}"),
        (1, "inconclusive", "7 rounds; expected at least 8"),
    ):
        measured = [replace(one, utilization=None) if one.rank == 1 and one.round < rounds else one for one in MEASURED]
        verdict = judge(CASE, evidence(rank_1(unread, rounds), measured), CONFIDENCE)
        assert (verdict.outcome, verdict.reason, verdict.culprits) == (outcome, reason, ())


class TestLowUtilization:
    def of(self, *shares: float | None) -> list[str]:
        """Notes on ranks that are so busy, whatever NVML says besides."""
        measured = [replace(one, utilization=shares[one.rank]) for one in MEASURED]
        return device_notes(make_evidence(CASE, measured))

    def test_is_told_although_no_requirement_is_about_it(self) -> None:
        assert self.of(0.9, 0.5) == [
            "low utilization: weak/r, ddp@2: 1 of 2 devices below 80 %, least busy rank 1 on node1 with 50 %"
        ]

    def test_is_that_of_the_least_busy_of_several(self) -> None:
        assert self.of(0.3, 0.5) == [
            "low utilization: weak/r, ddp@2: 2 of 2 devices below 80 %, least busy rank 0 on node0 with 30 %"
        ]

    def test_is_not_told_of_what_is_busy_or_could_not_be_read(self) -> None:
        assert self.of(0.8, 0.99) == []
        assert self.of(None, None) == []

    def test_is_the_median_of_the_rounds(self) -> None:
        def notes(rounds: int) -> list[str]:
            idle = [replace(one, utilization=0.1 if one.round < rounds else 0.99) for one in MEASURED]
            return device_notes(make_evidence(CASE, idle))

        assert notes(3) == []
        assert len(notes(5)) == 1

    def test_of_one_device_alone_names_it(self) -> None:
        alone = [replace(one, arm="alone", utilization=0.5) for one in MEASURED if one.rank == 0]
        assert device_notes(make_evidence(CASE, alone)) == [
            "low utilization: weak/r, alone: the device below 80 %, least busy rank 0 on node0 with 50 %"
        ]

    def test_of_imported_values_is_theirs_who_published_them(self) -> None:
        imported = [replace(one, utilization=0.1, single_sample=True) for one in MEASURED]
        assert device_notes(make_evidence(CASE, imported)) == []


class TestStalledDevice:
    def test_turns_a_pass_into_inconclusive_and_is_named(self) -> None:
        verdict = judged(rank_1(STALLED))
        assert verdict.outcome == "inconclusive"
        assert verdict.value == pytest.approx(0.99)
        assert verdict.reason == (
            f"GPU 1 on node1 is busy at nearly idle power: it waits inside a kernel ({STALLED_TEXT}), "
            "so its utilization proves nothing"
        )
        evidence = f"stalled in {ROUNDS} rounds: {STALLED_TEXT}"
        # It may as well wait for a peer.
        assert verdict.culprits == (Culprit("gpu", "node1", 1, "GPU-1", evidence, is_certain=False, local_rank=1),)

    def test_each_is_named(self) -> None:
        verdict = judged(lambda one: STALLED)
        assert [culprit.gpu_uuid for culprit in verdict.culprits] == ["GPU-0", "GPU-1"]

    @rows(("rounds", "outcome"), [(2, "passed"), (3, "passed"), (4, "inconclusive")])
    def test_is_none_in_a_few_rounds_only(self, rounds: int, outcome: str) -> None:
        verdict = judged(rank_1(STALLED, rounds))
        assert (verdict.outcome, len(verdict.culprits)) == (outcome, int(outcome != "passed"))

    def test_of_another_arm_does_not_matter(self) -> None:
        measured = [replace(one, arm="each@2") for one in MEASURED]
        other = replace(evidence(), telemetry=columns_of_telemetry(telemetry_of(measured, rank_1(STALLED))))
        assert judge(CASE, other, CONFIDENCE).outcome == "passed"

    @rows("change", [{}, THROTTLED, {"power_w": None}, {"utilization": None}])
    def test_a_pass_of_devices_that_do_not_stall_or_do_not_tell_stays(self, change: dict[str, Any]) -> None:
        assert judged(rank_1(change)).outcome == "passed"

    @rows(
        ("changes", "rounds", "is_told"),
        [
            ({}, ROUNDS, False),
            ({"power_w": None}, ROUNDS, True),
            ({"power_w": None}, ROUNDS // 2 + 1, True),
            ({"power_w": None}, ROUNDS // 2, False),
            ({"power_w": None, "energy_j": 600.0, "sources": {"energy_j": "counter"}}, ROUNDS, False),
            ({"power_limit_w": None}, ROUNDS, True),
        ],
    )
    def test_cannot_be_told_from_a_busy_one_where_power_is_unknown(
        self, changes: dict[str, Any], rounds: int, is_told: bool
    ) -> None:
        assert judged(rank_1(changes, rounds)).notes == ((POWER_UNKNOWN,) if is_told else ())

    def test_cannot_be_told_without_telemetry(self) -> None:
        verdict = judge(CASE, make_evidence(CASE, MEASURED), CONFIDENCE)
        assert (verdict.outcome, verdict.notes) == ("passed", (POWER_UNKNOWN,))

    def test_is_none_on_a_cpu(self) -> None:
        measured = [replace(one, device="cpu") for one in MEASURED]
        assert judge(CASE, make_evidence(CASE, measured), CONFIDENCE).notes == ()

    def test_saves_nothing_that_fails(self) -> None:
        case = make_case("device_utilization", 0.995)
        verdict = judge(case, evidence(rank_1(STALLED)), CONFIDENCE)
        assert verdict.outcome == "failed"

    def test_says_nothing_against_other_metrics(self) -> None:
        case = make_case("peak_memory_gib", 99.0)
        assert judge(case, evidence(rank_1(STALLED)), CONFIDENCE).outcome == "passed"

    def test_is_told_in_a_note_of_the_run_as_well(self) -> None:
        assert device_notes(evidence(rank_1(STALLED))) == [
            f"stalled: weak/r, ddp@2: GPU 1 on node1 ({STALLED_TEXT}): "
            "busy at nearly idle power: it waits inside a kernel"
        ]


class TestOnSeveralNodes:
    def test_a_stalled_device_of_one_keeps_all_from_passing(self) -> None:
        case = make_case("device_utilization", 0.9, world_size=2)
        plan = plan_of_nodes([case], nodes=3, ranks_per_node=2)
        measured = measure_nodes(plan)
        told = nodes_evidence(plan, measured)
        assert judge(case, told, CONFIDENCE).outcome == "passed"
        stalled = telemetry_of(measured, lambda one: STALLED if one.rank == 5 else {})
        verdict = judge(case, replace(told, telemetry=columns_of_telemetry(stalled)), CONFIDENCE)
        assert verdict.outcome == "inconclusive"
        assert "GPU 1 on n2 is busy at nearly idle power" in verdict.reason
        assert [(who.host, who.gpu_uuid, who.is_certain) for who in verdict.culprits] == [("n2", "GPU-5", False)]


class TestPowerInWords:
    def notes(self, changes: dict[str, Any]) -> list[str]:
        return device_notes(evidence(rank_1(changes)))

    def test_power_is_that_of_the_energy_counter(self) -> None:
        counted = {"power_w": spread(600.0), "energy_j": 95.0, "sources": {"energy_j": "counter"}}
        seconds = telemetry_of(MEASURED)[0].ended_unix_s - telemetry_of(MEASURED)[0].started_unix_s
        assert f"{95.0 / seconds:.0f} W of 700 W" in self.notes({**THROTTLED, **counted})[0]

    def test_a_slow_clock_is_its_own_flag(self) -> None:
        slow = {"sm_clock_mhz": spread(900.0)}
        assert self.notes(slow) == [
            "slow_clock: weak/r, ddp@2: GPU 1 on node1 (99 % busy, 600 W of 700 W, 900 MHz of 1980 MHz): "
            "busy at less than half of its clock"
        ]

    def test_an_idle_gpu_is_told_once_from_the_measurements(self) -> None:
        assert self.notes({"utilization": spread(0.1)}) == []


def test_gpus_with_less_power_than_they_are_built_for_are_told() -> None:
    gpus = [
        SurveyedGpu(index, f"GPU-{index}", "A100", "0", "20b2", local_rank=local_rank, power_limit_w=limit_w,
                    power_limit_default_w=default_w)
        for index, (local_rank, limit_w, default_w) in enumerate(
            [(0, 400.0, 400.0), (1, 300.0, 400.0), (None, 300.0, 400.0), (2, 400.0, None), (3, None, 400.0)]
        )
    ]  # fmt: skip
    surveyed = replace(evidence(), surveys={"n1": Survey("n1", 1.0, gpus=tuple(gpus))})
    assert device_notes(surveyed) == ["power limit below the default: GPU 1 on n1 (300 W, default 400 W)"]


ROUNDS_ALONE = 16
LATE = range(8, ROUNDS_ALONE)


def found_with(slow: Collection[int], throttled: Collection[int], rank: int = 3) -> Straggler:
    """Rank 3 is slow in some rounds; a rank is throttled in some."""
    measured = slow_in([*slow], ROUNDS_ALONE)
    blocks = [rank_of(rank, number, 0.1) for number in range(ROUNDS_ALONE)]
    told = [altered(one, **THROTTLED) if one.round in throttled else one for one in telemetry_of(blocks)]
    (found,) = with_held_down(find_stragglers(measured, LIMIT), measured, columns_of_telemetry(told))
    return found


def test_a_rank_that_is_slow_while_it_is_throttled_is_told_as_that() -> None:
    assert found_with(LATE, LATE).culprit.evidence == (
        "1.10× the median of 7 peers in the last 8 of 16 rounds, in which heat, power supply or board held it down"
    )


@pytest.mark.parametrize(
    ("slow", "throttled"),
    [(LATE, ()), (LATE, range(ROUNDS_ALONE)), (LATE, range(8)), (range(ROUNDS_ALONE), range(ROUNDS_ALONE))],
    ids=["never throttled", "always throttled", "throttled in the others", "always slow"],
)
def test_it_is_not_said_of_others(slow: Collection[int], throttled: Collection[int]) -> None:
    assert "held it down" not in found_with(slow, throttled).culprit.evidence


def test_another_rank_that_is_throttled_says_nothing() -> None:
    assert "held it down" not in found_with(LATE, LATE, rank=4).culprit.evidence
