"""A sweep is measured whole, and goes on only for what is required and still open."""

from __future__ import annotations

from pytest_ddpscale.judge.deciding import Decider
from pytest_ddpscale.plan.collective_sweep import sweep_study
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.records import RoundEnd
from tests.builders.records import gang_of, probe_blocks_of
from tests.judge.probed import CONFIDENCE, Value, measure_probe, probe_case, steady

ROUNDS = 8
BOUNDED, OTHER = Probe("all-reduce-32mib", 8), Probe("broadcast-1kib", 8)
PLAN = Plan(
    "a100", "cuda", (), ranks_per_node=8, probes=sweep_study([BOUNDED, OTHER], "cuda", ROUNDS, bounded=[BOUNDED])
)


def needed(value: Value, rounds: int) -> list[list[str]]:
    """After each round, which probes go on."""
    assert PLAN.probes is not None
    decider = Decider(PLAN, [probe_case(BOUNDED, 100.0)], CONFIDENCE)
    measured = [one for probe in PLAN.probes.probes for one in measure_probe(PLAN, probe, value, rounds)]
    decider.hear(gang_of(measured))
    names, words = [probe.id for probe in PLAN.probes.probes], []
    for number in range(rounds):
        for probe in PLAN.probes.probes:
            if probe.id in names:
                for block in probe_blocks_of([m for m in measured if (m.probe, m.round) == (probe.name, number)]):
                    decider.hear(block)
        decider.hear(RoundEnd(study="probes", round=number, arms=tuple(names)))
        names = decider.needed_arms("probes")
        words.append(names)
    return words


def test_everything_is_measured_in_all_rounds_of_the_sweep_and_nothing_after_it_if_all_is_decided() -> None:
    assert needed(steady(200.0), ROUNDS) == [[BOUNDED.id, OTHER.id]] * (ROUNDS - 1) + [[]]


def test_what_is_required_and_open_goes_on_alone() -> None:
    def restless(number: int, ranks: tuple[int, ...]) -> float:
        return 100.0 + (30.0 if number % 4 in (1, 2) else -30.0)

    words = needed(restless, ROUNDS + 3)
    assert words[: ROUNDS - 1] == [[BOUNDED.id, OTHER.id]] * (ROUNDS - 1)
    assert words[ROUNDS - 1 :] == [[BOUNDED.id]] * 4
