"""Whole plans on real ranks keep NCCL's rules: two, four and eight; two nodes are in integration/test_two_nodes.py."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import COLLECTIVES as EXCHANGES
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ends_of
from tests.builders.trained import MODEL, minute
from tests.forks.start import command

from .checking import COLLECTIVES, CREATION, Event, Logs, read_logs, violations
from .defects import DEFECTS
from .ranks import GangOrder, logs_of, ranks_folder, take_over

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 45.0
LIMIT_S = 300.0
WORKLOAD = Workload("a", ImageFamily(MODEL, 16, "contiguous", num_classes=10), "fp32", 2, 4)
WEIGHTS = sum(weight.numel() for weight in minute(num_classes=10).parameters())
BUFFERS = 8  # a mean and a variance for each of four channels
PROBED = tuple(f"{kind}-4kib" for kind in (*EXCHANGES, "send-recv"))


def study(ranks: int, *further: Arm, name: str = "a", rounds: int = 2) -> Study:
    """With every kind of arm, and DDP over 1, 2, 4 … ranks."""
    sizes = [2**power for power in range(ranks.bit_length())]
    arms = [Arm("alone", 1, 2), Arm("each", ranks, 2), Arm("no_sync", ranks, 2), *(Arm("ddp", n, 2) for n in sizes)]
    return Study("weak", replace(WORKLOAD, name=name), (*arms, *further), rounds, block_s=0.01, warmup_s=0.01)


def probes(*sizes: int) -> ProbeStudy:
    """All that communicate, over each of these numbers of ranks."""
    return ProbeStudy(tuple(Arm(name, size) for size in sizes for name in PROBED), rounds=2, block_s=0.01)


@dataclass(frozen=True)
class Measured:
    """What a gang left."""

    run: RunDirectory
    has_failed: bool

    @property
    def logs(self) -> Logs:
        return read_logs(logs_of(self.run.path))

    @property
    def ends(self) -> dict[str, str]:
        return {end.study: end.reason for end in ends_of(self.run.read_records()).values()}


def prepared(path: Path, plan: Plan) -> RunDirectory:
    run = RunDirectory.create(path)
    run.write_json(run.plan_json, plan)
    return run


TWO = Plan("cpu", "cpu", (study(2), study(2, name="b")), probes=probes(2), ranks_per_node=2)
FOUR = Plan("cpu", "cpu", (study(4),), probes=probes(2, 4), ranks_per_node=4)
EIGHT = Plan("cpu", "cpu", (study(8),), probes=probes(2, 8), ranks_per_node=8)
LONG = Plan("cpu", "cpu", (study(2, rounds=10_000), study(2, name="b")), ranks_per_node=2)
DDP_ONLY = Plan(
    "cpu", "cpu", (replace(study(4), arms=(Arm("ddp", 2, 2), Arm("ddp", 4, 2)), rounds=1),), ranks_per_node=4
)
GANGS: dict[str, tuple[Plan, dict[str, Any]]] = {
    "two ranks": (TWO, {}),
    "four ranks": (FOUR, {}),
    "eight ranks": (EIGHT, {}),
    "one of four breaks": (FOUR, {"breaks": (1, "ddp@4")}),
    "the budget ends": (LONG, {"budget_s": 4.0}),
    **{defect: (DDP_ONLY, {"defect": defect}) for defect in DEFECTS},
}
WHOLE = [name for name in GANGS if name not in DEFECTS]


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    """One after the other, of forks of one process."""
    folder = tmp_path_factory.mktemp("nccl")
    runs = {name: prepared(folder / name, plan) for name, (plan, _) in GANGS.items()}
    orders = [
        GangOrder(str(runs[name].path), tuple(plan.study_ids), plan.layout.ranks_per_node, TIMEOUT_S, **further)
        for name, (plan, further) in GANGS.items()
    ]
    done = subprocess.run(
        command("tests.nccl_rules.ranks"),
        input=json.dumps([asdict(order) for order in orders]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=worker_environment(os.environ, "cpu"),
        timeout=LIMIT_S,
        check=True,
    )
    failed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, has_failed in zip(runs, failed, strict=True) if has_failed] == ["one of four breaks"], (
        done.stderr
    )
    for run in runs.values():
        take_over(ranks_folder(run.path), run)
    return {name: Measured(run, has_failed) for (name, run), has_failed in zip(runs.items(), failed, strict=True)}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_plan_keeps_the_rules(gangs: dict[str, Measured], name: str) -> None:
    measured = gangs[name]
    assert list(measured.logs) == list(range(GANGS[name][0].layout.world_size))
    assert violations(measured.logs, TIMEOUT_S, has_failed=measured.has_failed) == []


def test_all_of_it_is_seen(gangs: dict[str, Measured]) -> None:
    """What DDP does by itself, in C++, like what probes ask for."""
    logs = gangs["eight ranks"].logs
    assert groups_of(logs) == {(0,), (0, 1), (0, 1, 2, 3), tuple(range(8))}
    for rank in range(8):
        asked = {event["asked"] for event in logs[rank] if event["kind"] == "collective"}
        assert f"allreduce {WEIGHTS} torch.float32" in asked, "DDP's own, of all gradients"
        assert f"broadcast {BUFFERS} torch.float32 from member 0" in asked, "DDP's own, of buffers"
        assert sum("gather" in one for one in asked) >= 2, "DDP's of the sizes, and the probe's"
        assert any("reduce_scatter" in one for one in asked)
        assert any(event["kind"] == "exchange" for event in logs[rank])


def test_a_budget_that_ends_leaves_no_study_half_open(gangs: dict[str, Measured]) -> None:
    measured = gangs["the budget ends"]
    assert set(measured.ends.values()) == {"budget"}
    created = [event for event in measured.logs[0] if event["kind"] == "create"]
    assert len(created) == 3, "the default group and those of the first study"


@pytest.mark.parametrize("rule", DEFECTS)
def test_a_mistake_that_gloo_lets_pass_is_found(gangs: dict[str, Measured], rule: str) -> None:
    found = violations(gangs[rule].logs, TIMEOUT_S)
    assert {one.rule for one in found} == {rule}, found


@pytest.mark.parametrize(("rule", "kind"), [(CREATION, "create"), (COLLECTIVES, "collective")])
def test_a_mistake_on_which_gloo_hangs_would_be_found(gangs: dict[str, Measured], rule: str, kind: str) -> None:
    """The log of ranks that made no mistake, with two lines of one of them exchanged."""
    logs = dict(gangs["four ranks"].logs)
    log = list(logs[1])
    first = next(
        number
        for number, (one, other) in enumerate(itertools.pairwise(log))
        if one["kind"] == other["kind"] == kind and _asked(one) != _asked(other)
    )
    log[first : first + 2] = log[first + 1], log[first]
    found = violations(logs | {1: log}, TIMEOUT_S)
    assert [one.rule for one in found] == [rule], found


def groups_of(logs: Logs) -> set[tuple[int, ...]]:
    return {tuple(event["ranks"]) for log in logs.values() for event in log if event["kind"] == "create"}


def _asked(event: Event) -> tuple[str, str]:
    return event["group"], event.get("asked", "")
