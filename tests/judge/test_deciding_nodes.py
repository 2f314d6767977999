"""Several nodes: when it is worth knowing which link is slow, and that what nobody can measure stops nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpscale.judge import judge as deciding
from pytest_ddpscale.judge.judge import Decider, judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import Pace, build_plan
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.run.block import Unsupported
from pytest_ddpscale.run.records import RoundEnd
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase, training_cases
from tests.builders.judged import CONFIDENCE
from tests.builders.probes import MATMUL, Value, measure_probe, probe_case, steady
from tests.builders.records import gang_of, gang_on, lines_of, probe_blocks_of

NODES, PER_NODE = 3, 8
WIDE, NARROW = Arm("all-reduce-1gib", NODES * PER_NODE), Arm("all-reduce-1gib", PER_NODE)
FAST, SLOW = 100.0, 10.0


def plan_of(cases: Sequence[AnyCase]) -> Plan:
    questions = [case.question for case in training_cases(cases)]
    probes = [case.probe for case in cases if isinstance(case, NodeCase) and case.probe]
    pace = Pace(16, 1.0, 1.0)
    return build_plan(Plan("a100", "cuda", (), nodes=NODES, ranks_per_node=PER_NODE), questions, pace, probes)


def probed(value: float, *cases: NodeCase, rounds: int = 8) -> Decider:
    """Who has heard what was probed, which was as fast everywhere."""
    plan = plan_of(cases)
    assert plan.probes is not None
    assert plan.pairs is not None
    decider = Decider(plan, cases, CONFIDENCE)
    for probe in plan.probes.arms:
        for record in lines_of(probed=measure_probe(plan, probe, steady(value), rounds)):
            decider.hear(record)
    return decider


class TestProbesThatHaveToldEnough:
    BOUNDS = probe_case(MATMUL, 50.0), probe_case(WIDE, 50.0)

    @pytest.fixture
    def judged(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Names of the probes that are judged."""
        found: list[str] = []

        def judge_and_note(case: NodeCase, *others: Any) -> Verdict:
            found.append(case.id)
            return judge(case, *others)

        monkeypatch.setattr(deciding, "judge", judge_and_note)
        return found

    def test_are_not_judged_again_before_they_are_measured_again(self, judged: list[str]) -> None:
        matmul, wide = self.BOUNDS
        decider = probed(FAST, matmul, wide)
        assert decider.needed_arms("probes") == []
        assert judged == [matmul.id, wide.id]
        assert decider.needed_arms("probes") == []
        assert judged == [matmul.id, wide.id]

    def test_are_judged_again_with_what_was_measured_meanwhile(self, judged: list[str]) -> None:
        matmul, wide = self.BOUNDS
        decider = probed(FAST, matmul, wide)
        decider.needed_arms("probes")
        judged.clear()
        plan = plan_of(self.BOUNDS)
        anew = measure_probe(plan, WIDE, lambda number, ranks: FAST if number < 8 else 5 * SLOW, 16)
        for record in lines_of(probed=[one for one in anew if one.round >= 8]):
            decider.hear(record)
        assert decider.needed_arms("probes") == [WIDE.name]
        assert judged == [wide.id]

    def test_are_still_asked_for_while_another_bound_on_them_is_open(self, judged: list[str]) -> None:
        both = probe_case(WIDE, 50.0), replace(probe_case(WIDE, FAST * 1.001), name="warn")
        decider = probed(FAST, *both)
        assert [decider.needed_arms("probes") for _ in range(2)] == [[WIDE.name]] * 2
        assert judged == [both[0].id, both[1].id, both[1].id]


def test_a_probe_that_only_some_ranks_cannot_do_goes_on_until_the_fewest_rounds() -> None:
    decider = probed(FAST, probe_case(MATMUL, 50.0), rounds=3)
    decider.hear(Unsupported(study="probes", arm=MATMUL.name, gang=0, ranks=(3,), reasons="too old"))
    assert decider.needed_arms("probes") == [MATMUL.name]
    fresh = Decider(plan_of([probe_case(MATMUL, 50.0)]), [probe_case(MATMUL, 50.0)], CONFIDENCE)
    fresh.hear(gang_on(["n0", "n1", "n2"], PER_NODE, "GPU-{}"))
    fresh.hear(Unsupported(study="probes", arm=MATMUL.name, gang=0, ranks=tuple(range(24)), reasons="too old"))
    assert fresh.needed_arms("probes") == []


ROUNDS = 8
BOUNDED, OTHER = Arm("all-reduce-32mib", 8), Arm("broadcast-1kib", 8)
SWEEP = ProbeStudy((BOUNDED, OTHER), 2 * ROUNDS, 0.1, 2.0, (BOUNDED.name,), ROUNDS)
PLAN = Plan("a100", "cuda", (), ranks_per_node=8, probes=SWEEP)


def needed(value: Value, rounds: int) -> list[list[str]]:
    """After each round, which probes go on."""
    assert PLAN.probes is not None
    decider = Decider(PLAN, [probe_case(BOUNDED, 100.0)], CONFIDENCE)
    measured = [one for probe in PLAN.probes.arms for one in measure_probe(PLAN, probe, value, rounds)]
    decider.hear(gang_of(measured))
    names, words = [probe.name for probe in PLAN.probes.arms], []
    for number in range(rounds):
        for probe in PLAN.probes.arms:
            if probe.name in names:
                for block in probe_blocks_of([m for m in measured if (m.probe, m.round) == (probe.kind, number)]):
                    decider.hear(block)
        decider.hear(RoundEnd(study="probes", round=number, arms=tuple(names)))
        names = decider.needed_arms("probes")
        words.append(names)
    return words


def test_everything_is_measured_in_all_rounds_of_the_sweep_and_nothing_after_it_if_all_is_decided() -> None:
    assert needed(steady(200.0), ROUNDS) == [[BOUNDED.name, OTHER.name]] * (ROUNDS - 1) + [[]]


def test_what_is_required_and_open_goes_on_alone() -> None:
    def restless(number: int, ranks: tuple[int, ...]) -> float:
        return 100.0 + (30.0 if number % 4 in (1, 2) else -30.0)

    words = needed(restless, ROUNDS + 3)
    assert words[: ROUNDS - 1] == [[BOUNDED.name, OTHER.name]] * (ROUNDS - 1)
    assert words[ROUNDS - 1 :] == [[BOUNDED.name]] * 4
