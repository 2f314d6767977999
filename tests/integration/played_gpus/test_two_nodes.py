"""Gangs of played GPUs on two nodes: two agents here, each on a machine of its own, whose NCCL meets in one network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.launcher import AgentProcess, Launch
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ends_of
from pytest_ddpscale.run.survey_record import surveys_of
from pytest_ddpscale.settings import settings_from
from tests.builders.measurements import measurements_in
from tests.forks.start import VARIABLE, address
from tests.nvml_stand_in.machine import A100, uuid_of
from tests.played_cuda.compiling import LIBRARY_NAME
from tests.played_cuda.machine import PlayedCuda
from tests.two_nodes_here import HOSTS, TwoNodesHere

pytestmark = pytest.mark.lab

GPUS = 2
WORKLOAD = Workload("tiny", ImageFamily("minute", 32, "contiguous", num_classes=10), "fp32", 4)
ARMS = (Arm("alone", 1, 4), Arm("ddp", 4, 4))
# Each study that fails has a gang of its own, so that the second begins with new ranks if the first breaks.
STUDIES = tuple(Study("weak", replace(WORKLOAD, name=name), ARMS, 2, 0.2, warmup_s=0.1) for name in ("one", "two"))
PLAN = Plan(
    "any", "cuda", STUDIES, probes=ProbeStudy((Arm("all-reduce-1mib", 4),), 2, 0.1), nodes=2, ranks_per_node=GPUS,
    survey=True,
)  # fmt: skip


class PlayedNodes(TwoNodesHere):
    """As ssh would start the agents, each with the library of its own machine."""

    machines: tuple[PlayedCuda, ...] = ()

    def processes(self, launch: Launch) -> list[AgentProcess]:
        """An agent for each."""
        return [
            replace(one, command=["env", f"LD_PRELOAD={machine.folder / LIBRARY_NAME}", *one.command])
            for machine, one in zip(self.machines, super().processes(launch), strict=True)
        ]


@pytest.fixture(scope="module")
def measured(played_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    """A run of two nodes with two A100 each."""
    folder = tmp_path_factory.mktemp("nodes")
    run = RunDirectory.create(folder / "run")
    run.write_json(run.plan_json, PLAN)
    first = PlayedCuda(played_libraries, folder / "first", [A100] * GPUS)
    second = PlayedCuda(played_libraries, folder / "second", [A100] * GPUS, first_uuid=GPUS, fabric=first.id)
    with first, second:
        server = address(str(played_libraries / LIBRARY_NAME))
        launcher = PlayedNodes(settings_from({}, {}, {}), {**os.environ, VARIABLE: server})
        launcher.machines = (first, second)
        environment = worker_environment(os.environ, "cuda") | {"LD_LIBRARY_PATH": str(played_libraries)}
        launch = Launch(launcher, environment, hosts=HOSTS, device_type="cuda", nodes=2)
        Supervisor(launch, run, Limits(inactivity_s=60.0)).measure(PLAN)
        yield run


def test_every_study_of_both_nodes_is_measured(measured: RunDirectory) -> None:
    ends = ends_of(measured.read_records())
    assert {study: end.reason for study, end in ends.items()} == dict.fromkeys(PLAN.study_ids, "rounds"), ends
    over_all = [one for one in measurements_in(measured) if (one.study, one.arm) == ("weak/one", "ddp@4")]
    assert sorted((one.round, one.rank) for one in over_all) == [(r, rank) for r in range(2) for rank in range(4)]
    for number in range(2):
        assert len({one.parameters_checksum for one in over_all if one.round == number}) == 1


def test_each_node_has_its_own_gpus(measured: RunDirectory) -> None:
    (gang,) = gangs_by_number(measured.read_records()).values()
    assert [place.host for place in gang.places] == [HOSTS[0]] * GPUS + [HOSTS[1]] * GPUS
    assert [place.uuid for place in gang.places] == [uuid_of(number) for number in range(2 * GPUS)]
    surveys = surveys_of(measured.read_records())
    assert {survey.host: [gpu.uuid for gpu in survey.gpus] for survey in surveys.values()} == {
        HOSTS[0]: [uuid_of(0), uuid_of(1)], HOSTS[1]: [uuid_of(2), uuid_of(3)],
    }  # fmt: skip
