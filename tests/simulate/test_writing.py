"""A simulated run directory: complete, judged like a real one, and never to be taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.links import slow_links
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.session.sources import measured_layout
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.writing import write_simulated_run
from tests.builders.clusters import a100, faults

# By a sound machine: its host takes longer than so few images, and there are no earlier runs.
NOT_TOLD = {"strong_scaling_speedup", "strong_scaling_efficiency", "no_regression"}


def written(folder: Path, *texts: str, gpus: int = 8, seed: int = 0, rounds: int = FEWEST_ROUNDS) -> RunDirectory:
    cluster = a100(gpus)
    run = RunDirectory.create(folder)
    plan = cluster.plan(rounds=rounds, world_sizes=(gpus,), seed=seed)
    simulated = SimulatedRun(plan, cluster.performance, faults(*texts, gpus=gpus), seed)
    write_simulated_run(run, cluster, simulated, ["ddpscale", "simulate"])
    return run


def test_it_says_everywhere_that_it_is_simulated(tmp_path: Path) -> None:
    record = written(tmp_path / "run", "slow-gpu:3:1.2").read_run()
    assert record.is_simulated()
    assert (record.simulated, record.status) == (True, "simulated")
    assert record.notes == ("simulated faults: slow-gpu:3:1.2",)
    assert record.simulation is not None
    assert (record.simulation.faults, record.simulation.seed) == (("slow-gpu:3:1.2",), 0)
    assert record.simulation.model["noise"]["round_sd"] == 0.003
    assert record.argv == ("ddpscale", "simulate")


def test_every_host_has_its_devices(tmp_path: Path) -> None:
    hosts = ranks_by_host(gangs_by_number(written(tmp_path / "run", gpus=16).read_records()).values())
    assert [(host, len(ranks)) for host, ranks in hosts.items()] == [("simulated-0", 8), ("simulated-1", 8)]
    one = hosts["simulated-1"][3]
    assert (one.place.index, one.place.uuid, one.device_name) == (3, "SIM-11", "simulated a100-sxm4-80gb")


def verdicts_on(folder: Path, *texts: str, gpus: int = 32) -> dict[str, Verdict]:
    """On all that such a cluster can be asked, by their ids."""
    evidence = read_evidence(written(folder, *texts, gpus=gpus, rounds=16))
    assert evidence.errors == {}
    return {case.id: judge(case, evidence, 0.95) for case in a100(gpus).cases}


@pytest.mark.parametrize("gpus", [8, 32])
def test_a_sound_cluster_keeps_all_that_its_sku_promises(tmp_path: Path, gpus: int) -> None:
    verdicts = verdicts_on(tmp_path / "run", gpus=gpus)
    not_kept = {name: verdict for name, verdict in verdicts.items() if not verdict.passed}
    assert {verdict.metric for verdict in not_kept.values()} == NOT_TOLD
    assert "failed" not in {verdict.outcome for verdict in not_kept.values()}
    assert not any(verdict.culprits for verdict in verdicts.values())


@pytest.mark.parametrize(
    ("faults", "named_by"),
    [
        (["slow-gpu:20:1.06"], {"weak_scaling_efficiency": 20}),
        (["corrupt-rank:20"], {"replica_agreement": 20, "matmul_tflops": 20}),
        (
            ["bad-gpu:20:ecc", "bad-gpu:3:lanes", "bad-gpu:12:nvlink"],
            {
                "node_check[ecc]": 20, "node_check[pcie]": 3, "node_check[pcie_under_load]": 3,
                "host_bandwidth_gbps": 3, "node_check[nvlink]": 12,
            },
        ),
        (
            ["bad-gpu:20:clock"],
            {"node_check[throttling]": 20, "node_check[throttling_under_load]": 20, "rank_uniformity": 20},
        ),
        (["slow-probe:20:memory-copy:0.6"], {"memory_bandwidth_gbps": 20}),
    ],
)  # fmt: skip
def test_a_fault_of_a_gpu_of_any_node_is_seen_and_named(
    faults: list[str], named_by: dict[str, int], tmp_path: Path
) -> None:
    verdicts = verdicts_on(tmp_path / "run", *faults)
    for name, rank in named_by.items():
        found = [verdict for verdict in verdicts.values() if verdict.id.startswith(name)]
        failed = [verdict for verdict in found if verdict.outcome == "failed"]
        assert failed, [(verdict.id, verdict.outcome, verdict.reason) for verdict in found]
        culprits = {(c.host, c.place.index) for verdict in failed for c in verdict.culprits if c.is_certain}
        assert culprits == {(f"simulated-{rank // 8}", rank % 8)}, name


@pytest.mark.parametrize(
    ("fault", "metrics"),
    [
        ("slow-link:2:0.3", {"busbw_gbps", "pair_bandwidth_gbps"}),
        ("throttle:2:1.3", {"throughput_per_gpu"}),
    ],
)
def test_a_fault_of_any_node_is_seen_and_named(fault: str, metrics: set[str], tmp_path: Path) -> None:
    failed = [verdict for verdict in verdicts_on(tmp_path / "run", fault).values() if verdict.outcome == "failed"]
    assert metrics <= {verdict.metric for verdict in failed}
    assert {c.host for verdict in failed for c in verdict.culprits if c.is_certain} == {"simulated-2"}


@pytest.mark.parametrize("link", [(1, 2), (0, 3), (1, 3)])
def test_a_single_slow_link_is_named_with_both_its_ends(link: tuple[int, int], tmp_path: Path) -> None:
    one, other = link
    evidence = read_evidence(written(tmp_path / "run", f"slow-link:{one}-{other}:0.3", gpus=32, rounds=8))
    (found,) = slow_links(evidence)
    assert (found.kind, found.hosts) == ("link", (f"simulated-{one}", f"simulated-{other}"))


def test_a_node_that_loses_packets_is_suspected_and_no_other(tmp_path: Path) -> None:
    evidence = read_evidence(written(tmp_path / "run", "lossy-link:2:0.05", gpus=32, rounds=16))
    assert [one.host for one in slow_links(evidence)] == ["simulated-2"], "so the run is not accepted"


def test_a_missing_rank_lets_nothing_pass_that_it_takes_part_in(tmp_path: Path) -> None:
    verdicts = verdicts_on(tmp_path / "run", "missing-rank:20:0")
    ones = {name: verdicts[name] for name in verdicts if name.endswith(("-8gpu]", "-node]", "[memory-copy]"))}
    assert len(ones) > 10
    assert not [name for name, verdict in ones.items() if verdict.passed]
    why = because("places-missing", 31, 32, "GPUs", ((20, 20),), ())
    assert verdicts["memory_bandwidth_gbps[memory-copy]"].because == why


@pytest.mark.parametrize(("gpus", "layout"), [(4, Layout(1, 4)), (16, Layout(2, 8))])
def test_it_is_judged_as_the_nodes_that_were_simulated(tmp_path: Path, gpus: int, layout: Layout) -> None:
    written(tmp_path / "run", gpus=gpus)
    assert measured_layout(RunDirectory.open(tmp_path / "run")) == layout


def test_a_disk_that_fills_up_is_a_sentence_and_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write_json", full)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        written(tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
