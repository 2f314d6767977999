"""Sessions on played CUDA that go wrong: what each fault comes to, whom it names, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.played_gpus.played_session import HOST, EndedSession, begin_on_cuda
from tests.nvml_stand_in.machine import A100, uuid_of
from tests.played_cuda.machine import GPU_BOUND, PlayedCuda
from tests.plugin.site import outcome_in

pytestmark = pytest.mark.lab

TRAINING = ("-k", "test_node_check or test_throughput")
PEERS = """\
schema_version: 2
sources: {paper: nobody}
peers: {computing: 30 %, nodes: off, memory: off, host: off, pairs: off}
workloads:
  tiny: {model: squeezenet1_1, precision: fp32, image_size: 32, num_classes: 10}
families:
  played:
    - {weak_scaling_efficiency: {4: 0.02}, of: tiny, published: paper, bound: 0.01, because: made up}
skus:
  a100-sxm4-80gb:
    description: played
    detect: {name: '^NVIDIA A100-SXM4-80GB$', pci_device_ids: ['20b2'], memory_gib: 80}
    node: {pcie_generation: 4, pcie_width: 16, nvlinks: 12, ecc: true, free_disk_gib: 0.01}
    families: [played]
    batch: {tiny: 4}
"""
Session = Callable[..., EndedSession]


@pytest.fixture
def ended(played_libraries: Path, tmp_path: Path) -> Session:
    """Runs a session to its end on GPUs with faults."""

    def run(
        faults: Sequence[str], *arguments: str, gpus: int = 2, environ: dict[str, str] | None = None, **machine: Any
    ) -> EndedSession:
        with PlayedCuda(played_libraries, tmp_path / "machine", [A100] * gpus, faults, **machine) as played:
            session = begin_on_cuda(tmp_path / "site", played, *arguments, **(environ or {})).ended()
        assert session.left_behind == [], session.terminal
        return session

    return run


def named(session: EndedSession) -> set[tuple[str, int | None, str | None]]:
    """Host, GPU and UUID of everybody that any verdict names."""
    culprits = [one for verdict in session.verdicts["verdicts"] for one in verdict["culprits"]]
    return {(one["host"], one.get("index"), one.get("uuid")) for culprit in culprits for one in culprit["places"]}


def headline(session: EndedSession) -> str:
    """The sentence with the outcome."""
    return outcome_in(session.terminal)


def test_a_gpu_that_hangs_in_a_collective_costs_what_was_not_measured_yet(ended: Session) -> None:
    # With the GPU and not the host as what takes time, a block has few steps on any machine.
    session = ended(["gpu=1,collective=80,hang=1000"], "--ddp-inactivity-limit=15s", *TRAINING, settings=GPU_BOUND)
    assert session.exit_code == 1
    assert headline(session).startswith("INCOMPLETE: ")
    # The other rank waits for it in the same collective, and is not accused.
    ended_for = "ranks recorded nothing for 15 s (--ddp-inactivity-limit), so the gang was ended."
    assert f"{ended_for} rank 1 on" in session.terminal
    assert "round 0" not in session.verdict("throughput_per_gpu")["reason"]
    assert {number for _, _, number, _ in session.timed_blocks} >= {0}


def test_a_gpu_without_memory_left_is_told_by_its_number(ended: Session) -> None:
    session = ended(["gpu=1,held=81200"], *TRAINING)
    assert session.exit_code == 1
    assert headline(session).startswith("INCOMPLETE: ")
    reason = session.verdict("throughput_per_gpu")["reason"]
    assert f"rank 1 on {HOST} failed in preparation" in reason
    assert "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 1 has a total capacity of 79.35 GiB" in reason


def test_a_gpu_that_fell_off_the_bus_before_is_named(ended: Session) -> None:
    session = ended([], *TRAINING, gpus=3, lost=[1])
    assert (session.exit_code, session.verdicts["outcome"]) == (1, "rejected")
    assert headline(session).startswith(f"REJECTED: GPU 1 on {HOST}: lost: GPU is lost")
    assert named(session) == {(HOST, 1, None)}  # a lost GPU does not tell its UUID any more


OLD = {"driver_version": "570.86.15", "cuda_driver_version": 12080}


@pytest.mark.parametrize(
    ("faults", "machine", "found", "cure"),
    [
        ([], OLD, "the driver supports CUDA 12.8, torch ", "driver 580 or later"),
        (["not-ready=1"], {}, "CUDA finds 0 of the 2 GPUs that ranks may use (Error 802: ", "nvidia-fabricmanager"),
    ],
)  # fmt: skip
def test_a_node_where_cuda_does_not_start_fails_before_the_launch(
    ended: Session, faults: list[str], machine: dict[str, Any], found: str, cure: str
) -> None:
    session = ended(faults, *TRAINING, **machine)
    assert (session.exit_code, session.verdicts["outcome"]) == (1, "rejected")
    assert headline(session).startswith(f"REJECTED: node {HOST}: {found}")
    assert cure in headline(session)
    assert session.lines("measurements.jsonl", "gang") == []
    assert named(session) == {(HOST, None, None)}


def test_a_gpu_whose_error_ends_its_rank_in_two_gangs_is_rejected(ended: Session) -> None:
    # Each gang comes so far: that of the probes in its first blocks, of which a busy machine has shorter ones.
    session = ended(["gpu=1,launch=250,error=719"], gpus=3)
    assert (session.exit_code, session.verdicts["outcome"]) == (1, "rejected")
    assert headline(session).startswith(f"REJECTED: GPU 1 (GPU-00000001…) on {HOST}: CUDA error: unspecified launch")
    assert named(session) == {(HOST, 1, uuid_of(1))}


def test_software_that_fails_on_one_rank_a_moment_earlier_accuses_no_gpu(ended: Session) -> None:
    session = ended(["gpu=0,launch=40,error=700", "gpu=1,launch=30,hang=1", "gpu=1,launch=40,error=700"])
    assert headline(session).startswith("INCOMPLETE: ")
    gangs = session.lines("measurements.jsonl", "gpu_errors")
    assert [{one["place"]["local_rank"] for one in gang["errors"]} for gang in gangs] == [{0, 1}] * len(gangs) != []
    assert named(session) == set()


def test_a_slow_gpu_is_named_by_the_index_of_nvidia_smi(ended: Session, tmp_path: Path) -> None:
    thresholds = tmp_path / "peers.yaml"
    thresholds.write_text(PEERS, encoding="utf-8")
    session = ended(
        ["gpu=4,slow=3"], f"--thresholds={thresholds}", gpus=6, environ={"CUDA_VISIBLE_DEVICES": "2,3,4,5"},
        settings=GPU_BOUND,
    )  # fmt: skip
    assert (session.exit_code, session.verdicts["outcome"]) == (1, "rejected")
    assert headline(session).startswith(f"REJECTED: GPU 4 (GPU-00000004…, local rank 2) on {HOST} is ")
    assert named(session) == {(HOST, 4, uuid_of(4))}
