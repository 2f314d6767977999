"""A simulated run directory: complete, judged like a real one, and never to be taken for one.

Of a cluster of 32 GPUs with faults, a line of verdicts.txt, it is told what is not met, and who is certainly named.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.links import slow_links
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.records import Rank, StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.session.evidence import measured_layout
from pytest_ddpscale.simulate.cluster import expected_value, open_cluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions
from pytest_ddpscale.simulate.writing import gang_of, name_of_pattern, records, write_simulated_run
from pytest_ddpscale.thresholds.cases import NodeCase
from tests.benchmarks import benchmark
from tests.builders.clusters import a100, faults, thresholds
from tests.builders.judged import CONFIDENCE
from tests.rows import rows
from tests.tables import assert_approved, each_block, missed

SESSION = benchmark("verdicts")
TABLE = Path(__file__).with_name("verdicts.txt")
CLUSTER = a100()


def written(folder: Path, gpus: int, *typed: str) -> RunDirectory:
    cluster, run = a100(gpus), RunDirectory.create(folder)
    plan = cluster.plan(16, (gpus,))
    simulated = SimulatedRun(plan, cluster.performance, faults(*typed, gpus=gpus), 0)
    write_simulated_run(run, cluster, simulated, ["ddpscale", "simulate"])
    return run


def told(line: str) -> Iterator[str]:
    gpus, *typed = line.split()
    with TemporaryDirectory() as folder:
        evidence = read_evidence(written(Path(folder) / "run", int(gpus), *typed))
    yield from map(say, evidence.errors.values())
    found = defaultdict[str, list[str]](list)
    for case in a100(int(gpus)).cases:
        verdict = judge(case, evidence, CONFIDENCE)
        certain = {
            f", {' '.join(culprit.hosts)} {culprit.place.index}" for culprit in verdict.culprits if culprit.is_certain
        }
        if not verdict.passed:
            found[f"{verdict.outcome}{''.join(sorted(certain))}"].append(case.id.replace("resnet152-fp16-", ""))
    yield from (f"{what}: {' '.join(ids)}" for what, ids in found.items())
    yield from (f"slow link: {' '.join(culprit.hosts)}" for culprit in slow_links(evidence))


@each_block(TABLE)
def test_it_is_judged_like_a_real_run(block: str) -> None:
    assert_approved(TABLE, block, told)


def simulate(out: Path, *typed: str) -> int:
    return main(["simulate", "--gpu-sku=a100", "--workloads=resnet152-fp16", "--rounds=8", f"--out={out}", *typed])


def test_it_says_everywhere_that_it_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert simulate(run, "--fault=slow-gpu:3:1.2", "--fault=drift:2", "--seed=3") == 0
    said = capsys.readouterr().out
    assert not missed(f"SIMULATED slow-gpu:3:1.2, drift:2 pytest --ddp-judge={run}", said)
    record = RunDirectory.open(run).read_run()
    assert (record.simulated, record.status) == (True, "simulated")
    assert record.notes == ("simulated faults: slow-gpu:3:1.2, drift:2",)
    assert record.simulation is not None
    assert (record.simulation.faults, record.simulation.seed) == (("slow-gpu:3:1.2", "drift:2"), 3)
    assert record.simulation.model == CLUSTER.performance.parameters


def test_every_host_has_its_devices(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 16)
    (gang,) = run.read_gangs()
    assert measured_layout(run) == Layout(2, 8)
    assert gang.hosts == ["simulated-0", "simulated-1"]
    last = Rank(place=Place("simulated-1", 7, "SIM-15", 7), device_name="simulated a100-sxm4-80gb")
    assert gang.ranks[-1] == last
    assert gang_of(Plan("cpu", "cpu", ())).places[0].uuid == "cpu"


def test_records_come_in_the_order_of_a_real_run_and_follow_from_the_seed() -> None:
    plan = CLUSTER.plan(rounds=2)
    runs = [list(records(SimulatedRun(plan, CLUSTER.performance, (), seed), CLUSTER)) for seed in (7, 7, 8)]
    told, again, other = (list(map(line_of, run)) for run in runs)
    assert told == again != other
    rounds = "Block RoundEnd Block RoundEnd StudyEnd"
    begins = "StudyStart SeededSteps WorkloadFlops"
    assert [kind.__name__ for kind, _ in groupby(map(type, runs[0]))] == (
        f"Survey GangRecord StudyStart {rounds} {begins} Sustained {rounds} {begins} {rounds} GangTransport".split()
    )


def test_the_packaged_thresholds_are_all_simulated() -> None:
    cluster = a100(workloads=None)
    plan = cluster.plan(rounds=2, short_blocks=True)
    found = records(SimulatedRun(plan, cluster.performance, (), 0), cluster)
    assert sum(isinstance(record, StudyEnd) for record in found) == len(plan.study_ids) > 8


def test_a_pair_of_nodes_without_one_of_them_is_not_measured(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert simulate(run.path, "--gpus=2", "--gpus-per-node=1", "--fault=missing-rank:1:0") == 0
    assert StudyEnd("pairs", "error") in run.read_records()


def test_a_cluster_is_scaled_to_its_size_although_nobody_requires_that(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert main(["simulate", "--gpu-sku=cpu-reference", "--gpus=4", "--rounds=8", f"--out={run.path}"]) == 0
    assert {"ddp@4", "each@4"} <= {arm.name for study in run.read_plan().studies for arm in study.arms}


def test_a_run_is_never_written_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [simulate(tmp_path), simulate(tmp_path, "--seed=1")] == [0, 4]
    assert "already holds a run" in capsys.readouterr().err


@rows("file", ["plan.json", "measurements.jsonl", "run.json"])
def test_a_disk_that_fills_up_is_a_sentence_and_leaves_no_run(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        if path.name == file:
            raise OSError(28, "No space left on device")
        path.touch()

    for writer in ("write_atomically", "append_whole"):
        monkeypatch.setattr(f"pytest_ddpscale.run.run_directory.{writer}", full)
    with pytest.raises(RunDirectoryError, match=f"{file}.*No space left.*Remove .*, and simulate into another"):
        written(tmp_path / file, 8)
    assert not (tmp_path / file / "run.json").exists()


@rows(("factor", "places", "outcome"), [(1.08, range(8), "failed"), (1.03, (0, 3, 7), "passed")])
def test_a_slow_gpu_gets_the_same_verdict_at_every_place(factor: float, places: range, outcome: str) -> None:
    """benchmarks/verdicts.py has the table: 8 % is rejected, 3 % ordinary."""
    cases = tuple(case for case in CLUSTER.cases if case.id == "weak_scaling_efficiency[resnet152-fp16-8gpu]")
    cluster = replace(CLUSTER, cases=cases)
    plan = cluster.plan(short_blocks=True)
    for place in places:
        run = SimulatedRun(plan, CLUSTER.performance, faults(f"slow-gpu:{place}:{factor}"), 3)
        (verdict,) = SESSION.session(run, cluster).verdicts.values()
        assert verdict.outcome == outcome


def test_each_probe_reaches_the_value_of_its_own_row() -> None:
    options = ClusterOptions("rtx-pro-6000-server", 8, workloads=("resnet50-nchw-fp16",), noise=0.0)
    cluster = open_cluster(thresholds(), options)
    run = SimulatedRun(cluster.plan(FEWEST_ROUNDS, short_blocks=True), cluster.performance, (), 1)
    found = {one.id: one.value for one in SESSION.session(run, cluster).verdicts.values()}
    probed = [case for case in cluster.cases if isinstance(case, NodeCase) and case.probe]
    bounded = [case for case in probed if not case.requirement.definition.compares_places]
    sound = {case.id: expected_value(case.requirement) for case in bounded}
    assert {"matmul_tflops[matmul-fp16-10240]", "memory_bandwidth_gbps[memory-copy]"} < sound.keys()
    assert {name: found[name] for name in sound} == pytest.approx(sound, rel=0.001)


NAMES = {r"^(?:NVIDIA )?L4\d$": "NVIDIA L40", r"^A\.1[0-9]$": "A.10", r"^((Tesla|Quadro) )?T4$": "Tesla T4"}


def test_a_device_name_has_the_first_of_each_choice_and_is_none_if_not_understood() -> None:
    assert {pattern: name_of_pattern(pattern) for pattern in (*NAMES, "^A{2}$", "")} == {**NAMES, "^A{2}$": "", "": ""}
    patterns = [sku.detect.name or "" for sku in thresholds().thresholds.skus.values()]
    assert all(re.fullmatch(pattern, name_of_pattern(pattern)) for pattern in patterns)
