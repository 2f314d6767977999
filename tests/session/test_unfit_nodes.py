"""Nodes that fail a check before anything is launched: measured all the same, left out, or a reason to stop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.judge.checks import unfit_nodes
from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.launch.supervisor import PreflightFailed
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.record_lines import Unfit
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.survey_record import Survey, surveys_of
from pytest_ddpscale.session import evidence
from pytest_ddpscale.session.open import THIS_MACHINE, Machine
from pytest_ddpscale.settings import UNFIT
from tests.approved import assert_approved, masked
from tests.builders.sessions import THRESHOLDS, InstantGang, Open
from tests.session.conftest import begun, told

PER_NODE = 2
THREE = ("n1", "n2", "n3")
THREE_NODES = Cluster(3, THREE, launcher="slurm")
CHECKED = THRESHOLDS.replace("    requirements: []\n", "    requirements: [{check: gpus, severity: fail}]\n").replace(
    "    - {strong_scaling_speedup: {8: 6.5}", "    - {throughput_per_gpu: {3 nodes: 500}"
)


class SurveyedGang(InstantGang):
    """Nodes are what their surveys say, and those that are admitted measure at once."""

    # Of a node that is not there: as many as ranks.
    cores: Mapping[str, int] = {"n2": 1}
    problem = ""
    measured: tuple[str, ...] = ()

    def measure(self, plan: Plan) -> None:
        self.plan, hosts = plan, self.launch.hosts or THREE[: plan.nodes]
        if plan.survey:
            found = [Survey(host, 1.7e9, self.problem, cores=self.cores.get(host, PER_NODE)) for host in hosts]
            self.run.append_records(found)
            if (refused := self.named["preflight"](found)) and plan.study_ids:
                raise PreflightFailed(refused)
        self.hosts = self.measured = hosts
        super().measure(plan)
        if plan.pairs is not None:
            self.run.append_record(StudyEnd(plan.pairs.id, "decided"))


TWO_NODES = Cluster(2, ("n1", "n2"), launcher="slurm")
ELSEWHERE = Cluster(3, (), launcher="slurm", is_elsewhere=True)
FIT: Mapping[str, Any] = {"cores": {}}
LOST, UNHEARD = {**FIT, "breaks": "n3 was lost"}, {"problem": "nvmlInit did not return"}
# What becomes of unfit nodes, the nodes, and what the gang is like of each session: later ones resume the run, or judge
# it where that is what becomes of them.
SCENES: Mapping[str, tuple[Any, ...]] = {
    # Fit nodes are measured by one launch, whatever is to become of others.
    **{f"all nodes are fit, {unfit}": (unfit, THREE_NODES, FIT) for unfit in UNFIT},
    # Unfit nodes are measured unless something else is asked.
    **{f"n2 is unfit, {unfit}": (unfit, THREE_NODES, {}) for unfit in (None, "measure", "stop")},
    "n2 is unfit, leave-out, and it is judged again": ("leave-out", THREE_NODES, {}, {"judges": True}),
    "n2 of two is unfit": ("leave-out", TWO_NODES, {}),
    "another one breaks": ("leave-out", THREE_NODES, {"breaks": "rank 1 on n3 died"}),
    # Those that are left are asked for what all are asked, whichever test comes first.
    "n2 of all is unfit": ("leave-out", THREE_NODES, {}),
    "n2 of all is unfit, and the last test comes first": ("leave-out", THREE_NODES, {}),
    # Where a scheduler chooses nodes, or none is left, that is a reason to stop.
    "a scheduler chooses the nodes": ("leave-out", ELSEWHERE, {}),
    "no node answers": ("leave-out", THREE_NODES, UNHEARD),
    "this machine does not answer": ("leave-out", THIS_MACHINE, UNHEARD),
    "no rank can run": ("measure", THREE_NODES, {}),
    "no GPU answers": ("measure", THREE_NODES, {}),
    # Studies of other nodes are never accepted together with those that there are.
    **{f"resumed once mended, {unfit}": (unfit, THREE_NODES, LOST, {}, FIT) for unfit in ("leave-out", "stop")},
}  # fmt: skip


def test_unfit_nodes_are_measured_left_out_or_a_reason_to_stop(
    opened: Open, gangs: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (programs := tmp_path / "bin").mkdir()
    (programs / "srun").symlink_to("/bin/true")  # which a machine without Slurm lacks; nothing is started with it
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setattr(evidence, "Supervisor", SurveyedGang)
    said = list[str]()
    for name, (unfit, cluster, *sessions) in SCENES.items():
        (tmp_path / "thresholds.yaml").write_text(CHECKED.replace("3 nodes", "all" if "of all" in name else "3 nodes"))
        gangs.clear()
        for number, gang in enumerate(sessions):
            heard, how = list[Any](), "judge" if "judges" in gang else "resume" if number else "run_dir"
            said.append(f"{name}: {how}")
            with monkeypatch.context() as patch:
                for key, value in gang.items():
                    patch.setattr(SurveyedGang, key, value, raising=False)
                if "no rank" in name:  # nothing is launched though unfit nodes are to be measured
                    patch.setattr(evidence, "unfit_nodes", lambda *given, hopeless: unfit_nodes(*given))
                given = {"ddp_run_dir": None, f"ddp_{how}": str(tmp_path / name)}
                if how != "judge":
                    given |= {"ddp_unfit": unfit, "ddp_nodes": str(cluster.nodes)}
                session = opened(gpu_sku="auto" if how == "judge" else "cpu", **given)
                vars(session.interim)["hear"] = heard.append
                if how != "judge":
                    session.source.machine = Machine(cluster, PER_NODE, lacks_gpus=name == "no GPU answers")
                begun(session)
                cases = [*session.source.selected]  # as pytest collected them, for all nodes
                for at in range(len(cases)):
                    session.judge(cases[at - ("last" in name)])
                session.source.close("finished")
                judgement = session.conclude(interrupted=False, spoiled=())
                session.source.release()
            run = session.source.measured_run
            record, plan = run.read_run(), run.read_plan()
            for launch in gangs:
                at, sizes = launch.plan, [study.world_size for study in launch.plan.studies]
                where = f"{launch.launch.hosts}, {at.nodes} nodes, {sizes} ranks"
                said.append(f"  launched on {where}, survey: {at.survey}: {launch.measured}")
            unfit_told = [dict(one.nodes) for one in heard if isinstance(one, Unfit)]
            said.append(f"  left out {record.left_out}, told {unfit_told}")
            surveys, sizes = len(surveys_of(run.read_records())), [one.world_size for one in judgement.verdicts]
            said.append(f"  {record.devices_present} devices, {surveys} surveys, {plan.nodes} nodes planned, survey: "
                        f"{plan.survey}, judged for {sizes}")  # fmt: skip
            said += told(judgement)
    assert_approved("unfit-nodes.txt", masked("\n".join(said), tmp_path))
