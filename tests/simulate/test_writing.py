"""A simulated run directory: complete, judged like a real one, and never to be taken for one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.evidence.evidence import read_evidence
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import SIMULATED_NOTE
from pytest_ddpscale.session.devices import measured_layout
from pytest_ddpscale.simulate.writing import write_simulated_run
from pytest_ddpscale.verdict.judge import judge
from tests.simulate.sample import a100, faults


def written(folder: Path, *texts: str, gpus: int = 8, seed: int = 0) -> RunDirectory:
    cluster = a100(gpus)
    run = RunDirectory.create(folder)
    plan = cluster.plan(rounds=FEWEST_ROUNDS, world_sizes=(gpus,), seed=seed)
    wrong = faults(*texts, gpus=gpus, topology=cluster.topology)
    write_simulated_run(run, cluster, plan, wrong, seed, ["ddpscale", "simulate"])
    return run


def test_it_says_everywhere_that_it_is_simulated(tmp_path: Path) -> None:
    record = written(tmp_path / "run", "slow-gpu:3:1.2").read_run()
    assert record["simulated"] is True
    assert record["status"] == "simulated"
    assert record["notes"] == [SIMULATED_NOTE, "simulated faults: slow-gpu:3:1.2"]
    assert record["simulation"]["faults"] == ["slow-gpu:3:1.2"]
    assert record["simulation"]["seed"] == 0
    assert record["simulation"]["model"]["noise"]["round_sd"] == 0.003
    assert record["argv"] == ["ddpscale", "simulate"]
    names = {device["name"] for host in record["hosts"] for device in host["devices"]}
    assert names == {"simulated a100-sxm4-80gb"}


def test_hosts_have_as_many_devices_as_ranks_took_part(tmp_path: Path) -> None:
    hosts = written(tmp_path / "run", gpus=12).read_run()["hosts"]
    assert [(host["host"], len(host["devices"])) for host in hosts] == [("simulated-0", 8), ("simulated-1", 4)]
    assert hosts[1]["devices"][3] == {"index": 3, "uuid": "SIM-11", "name": "simulated a100-sxm4-80gb"}


def test_it_is_read_and_judged_like_a_real_run(tmp_path: Path) -> None:
    evidence = read_evidence(written(tmp_path / "run"))
    assert evidence.errors == {}
    verdicts = [judge(case, evidence, 0.9) for case in a100().cases]
    outcomes = {verdict.outcome for verdict in verdicts if "host-bound" not in verdict.notes}
    assert outcomes <= {"passed", "inconclusive"}
    assert sum(verdict.passed for verdict in verdicts) >= 10


def test_a_faulty_gpu_is_named(tmp_path: Path) -> None:
    evidence = read_evidence(written(tmp_path / "run", "slow-gpu:11:1.3", gpus=16))
    case = next(case for case in a100().cases if case.id == "rank_uniformity[resnet152-fp16-node]")
    assert judge(case, evidence, 0.95).outcome in ("passed", "inconclusive")  # among the first eight all is well
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["simulation"]["gpus"] == 16


@pytest.mark.parametrize(("gpus", "layout"), [(4, Layout(1, 4)), (16, Layout(2, 8))])
def test_it_is_judged_as_the_nodes_that_were_simulated(tmp_path: Path, gpus: int, layout: Layout) -> None:
    written(tmp_path / "run", gpus=gpus)
    assert measured_layout(RunDirectory.open(tmp_path / "run")) == layout


def test_the_same_seed_writes_the_same_measurements(tmp_path: Path) -> None:
    one, other, third = (
        written(tmp_path / name, seed=seed).measurements_sha256() for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert one == other != third


def test_a_disk_that_fills_up_is_a_sentence_and_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write_json", full)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        written(tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
