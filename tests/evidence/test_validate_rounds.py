"""What a study's records say of its course is held against each other before anything is judged."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.evidence.evidence import read_evidence
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.records import StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import start_run
from tests.verdict.sample import make_case, measure, plan_of, seeded_steps

Records = list[dict[str, Any]]
ROUNDS = FEWEST_ROUNDS + 2


def written(tmp_path: Path, change: Callable[[Records], Records]) -> RunDirectory:
    """A run of which the last two timed `alone` only, after a change to its records."""
    plan: Plan = plan_of([make_case("weak_scaling_efficiency", 0.5), make_case("throughput_per_gpu", 50.0, 1)])
    (study,) = plan.studies
    everything = [arm.name for arm in study.arms]
    records: Records = [{"kind": "seeded_step", **vars(step), "local_rank": 0} for step in seeded_steps(study)]
    for number in range(ROUNDS):
        arms = everything if number < FEWEST_ROUNDS else ["alone"]
        records += [one.as_json() for one in measure(study, ROUNDS) if one.round == number and one.arm in arms]
        records.append({"kind": "round_end", "study": study.id, "round": number, "arms": arms})
    records.append(StudyEnd(study.id, "decided").as_json())
    run = RunDirectory.create(tmp_path / "run")
    start_run(run, plan.sku, (), tmp_path, "ab" * 32)
    run.write_json(run.plan_json, plan.as_json())
    for record in change(records):
        run.append_record(json.loads(json.dumps(record)))
    return run


def with_arms(number: int, arms: Any) -> Callable[[Records], Records]:
    def change(records: Records) -> Records:
        ends = [r for r in records if r["kind"] == "round_end" and r["round"] == number]
        ends[0]["arms"] = arms
        return records

    return change


def test_rounds_that_leave_out_what_is_decided_are_fine(tmp_path: Path) -> None:
    assert read_evidence(written(tmp_path, lambda records: records)).errors == {}


def test_so_they_are_in_any_order_and_twice(tmp_path: Path) -> None:
    chance = random.Random(3)
    assert read_evidence(written(tmp_path, lambda r: chance.sample([*r, *r], 2 * len(r)))).errors == {}


@pytest.mark.parametrize(
    ("number", "arms", "found"),
    [
        (2, [], "times nothing after"),
        (2, ["alone"], "times alone after"),
        (ROUNDS - 1, ["alone", "ddp@2"], "times alone, ddp@2 after alone"),
        (ROUNDS - 1, ["ddp@64"], "times ddp@64 after alone"),
        (ROUNDS - 1, [], "a measurement of an arm that its round left out"),
        (ROUNDS - 1, "alone", "expected a list of names"),
        (ROUNDS - 1, [{"alone": 1}], "with arms"),
    ],
)
def test_arms_that_cannot_have_been_left_out_are_refused(tmp_path: Path, number: int, arms: Any, found: str) -> None:
    with pytest.raises(RunDirectoryError, match=found):
        read_evidence(written(tmp_path, with_arms(number, arms)))


def test_two_seeded_steps_of_one_rank_that_differ_are_refused(tmp_path: Path) -> None:
    for order in (1, -1):
        run = written(tmp_path / str(order), lambda r, o=order: [*r, r[0] | {"checksum": "other"}][::o])  # type: ignore[misc]
        with pytest.raises(RunDirectoryError, match="another seeded_step than an earlier line"):
            read_evidence(run)


def test_a_rank_that_moves_to_another_host_is_refused(tmp_path: Path) -> None:
    def moved(records: Records) -> Records:
        return [r | {"host": f"n{r['round']}"} if r["kind"] == "measurement" else r for r in records]

    with pytest.raises(RunDirectoryError, match="where it was not before"):
        read_evidence(written(tmp_path, moved))


def test_a_rank_that_takes_the_turn_of_another_is_refused(tmp_path: Path) -> None:
    """Else a slow one could be passed over."""

    def first_again(records: Records) -> Records:
        blocks = [one for one in records if one["kind"] == "measurement"]
        first = next(one for one in blocks if one["rank"] == 0)
        place = {field: first[field] for field in ("rank", "host", "local_rank", "device")}
        return [one | place if one.get("arm") == "alone" else one for one in records]

    with pytest.raises(RunDirectoryError, match=r"has rank 0 in round \d of alone of .* rank 1's turn"):
        read_evidence(written(tmp_path, first_again))
