"""Real faults in real ranks: who is slow is named, and without a fault nobody is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_ddpscale.launch.launcher import GangSpec, Launcher
from pytest_ddpscale.launch.supervisor import Limits, Supervisor
from pytest_ddpscale.launch.torchrun import TorchrunLauncher
from pytest_ddpscale.plan.metric import METRICS
from pytest_ddpscale.plan.planner import Pace, Question, build_plan
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.verdict.evaluation import judge
from pytest_ddpscale.verdict.evidence import read_evidence
from pytest_ddpscale.verdict.verdict import Verdict

SMALL = Workload("small", "resnet18", "fp32", 4, 64, "contiguous", num_classes=10)
RANKS = 2
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < RANKS,
        reason="a slow rank can only be told from its neighbour if each has a core; expected at least 2",
    ),
]


class FaultyLauncher(TorchrunLauncher):
    """As the real one, with a worker that has a fault."""

    def command(self, gang: GangSpec) -> list[str]:
        command = super().command(gang)
        module = command.index("-m", command.index("torch.distributed.run"))
        script = str(Path(__file__).with_name("slow_worker.py"))
        return [*command[:module], script, *command[module + 2 :]]


def uniformity(run_path: Path, launcher: Launcher | None = None) -> Verdict:
    """The verdict on two ranks that train the same."""
    question = Question(METRICS["rank_uniformity"], SMALL, RANKS)
    plan = build_plan("cpu", "cpu", [question], Pace(6, 0.5, 0.5))
    run = RunDirectory.create(run_path)
    run.write_json(run.plan_json, plan.as_json())
    run.write_json(run.run_json, {"schema_version": 1, "sku": "cpu", "status": "finished"})
    Supervisor(launcher or TorchrunLauncher(), run, Limits(inactivity_s=120)).measure(plan)
    requirement = Requirement.model_validate(
        {
            "metric": "rank_uniformity",
            "workload": SMALL.name,
            "world_size": RANKS,
            "at_most": 1.02,
            "source": {"measured": 1.0, "margin_pct": 2.0, "reference": "equal ranks"},
        }
    )
    case = Case(requirement, SMALL, "small-2rank", "here:1", floor_img_per_s=1.0)
    return judge(case, read_evidence(run), 0.95)


@contextmanager
def busy_neighbour(core: int) -> Iterator[None]:
    """A process of ours that never rests, on one core."""
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_a_rank_that_sleeps_a_fifth_of_each_step_is_named(
    tmp_path: Path, slow_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW_RANK", str(slow_rank))
    monkeypatch.setenv("SLOW_SHARE", "0.25")  # asleep for 0.25 of 1.25: a fifth of the step
    verdict = uniformity(tmp_path / "run", FaultyLauncher())
    assert [(culprit.kind, culprit.gpu_index) for culprit in verdict.culprits] == [("gpu", slow_rank)], verdict
    assert "the time of its only peer" in verdict.culprits[0].evidence
    assert "above the floor of 1 img/s" in verdict.culprits[0].evidence


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_a_rank_with_a_busy_neighbour_on_its_core_is_named(tmp_path: Path, slow_rank: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    with busy_neighbour(cores[slow_rank * (len(cores) // RANKS)]):
        verdict = uniformity(tmp_path / "run")
    assert verdict.outcome == "failed"
    assert [(culprit.kind, culprit.gpu_index) for culprit in verdict.culprits] == [("gpu", slow_rank)], verdict


def test_without_a_fault_nobody_is_accused(tmp_path: Path) -> None:
    assert uniformity(tmp_path / "run").culprits == ()
