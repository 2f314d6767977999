"""One batch: what its gang says becomes whether it fits, and how much and how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.errors import GangError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.find_batch.batch_trial import BatchTrial, MemoryBounds, fastest, throughput, try_batch
from pytest_ddpscale.find_batch.memory_limit import MemoryCgroup, MemoryLimit
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import RankMemory
from tests.builders.launches import playing

pytestmark = pytest.mark.usefixtures("little_patience")

STUDY = Study(
    "weak", Workload("r", ImageFamily("resnet18"), "fp32", 16), (Arm("alone", 1, 16), Arm("ddp", 2, 16)), 2, 0.01, 0.0
)
PLAN = Plan("cpu", "cpu", (STUDY,))
TOGETHER = MemoryBounds(0.9, MemoryLimit(1000, "of a test"))
FAILED = """
say("failed", rank=1, local_rank=1, phase="warm-up", type={type!r}, message={message!r})
order()
say("exit", code=1)
"""


def memory(*ranks: dict[str, int]) -> str:
    """Source that says what ranks took."""
    line = json.dumps({"kind": "memory", "study": STUDY.id, "ranks": list(ranks)})
    return f"send('records', {line!r}.encode() + b'\\n')\n"


def end(reason: str = "rounds") -> str:
    return f"record('study_end', study={STUDY.id!r}, reason={reason!r})\n"


def tried(source: str, tmp_path: Path, bounds: MemoryBounds = TOGETHER) -> BatchTrial:
    launch = Launch(playing(f"serve()\n{source}"), {})
    return try_batch(PLAN, launch, bounds, tmp_path / "gang-0.log")


def test_on_a_cpu_ranks_share_what_there_is_and_libraries_count_once(tmp_path: Path) -> None:
    ranks = {"own_bytes": 300, "shared_bytes": 90}, {"own_bytes": 310, "shared_bytes": 100}
    trial = tried(memory(*ranks) + end(), tmp_path)
    assert trial == BatchTrial(16, True, "", 710, 1000)
    assert trial.share == 0.71


def test_more_than_the_share_that_may_be_taken_does_not_fit(tmp_path: Path) -> None:
    trial = tried(memory({"own_bytes": 901}) + end(), tmp_path)
    assert (trial.fits, trial.peak_bytes, trial.why_not) == (False, 901, "more than 90 % of the memory")


def test_all_of_the_share_may_be_taken(tmp_path: Path) -> None:
    assert tried(memory({"own_bytes": 900}) + end(), tmp_path).fits


def test_of_gpus_the_fullest_counts(tmp_path: Path) -> None:
    ranks = {"own_bytes": 700, "total_bytes": 1000}, {"own_bytes": 800, "total_bytes": 880}
    trial = tried(memory(*ranks) + end(), tmp_path, MemoryBounds(0.9))
    assert (trial.peak_bytes, trial.limit_bytes, trial.fits) == (800, 880, False)


def test_one_rank_out_of_memory_is_enough(tmp_path: Path) -> None:
    source = FAILED.format(type="OutOfMemoryError", message="CUDA out of memory")
    assert tried(source, tmp_path) == BatchTrial(16, False, "OutOfMemoryError on rank 1 in warm-up")


@pytest.mark.parametrize("reported", [True, False])
def test_another_failure_ends_the_search_and_says_who_and_with_what(tmp_path: Path, reported: bool) -> None:
    source = FAILED.format(type="ValueError", message="no such model")
    with pytest.raises(GangError) as refused:
        tried((memory({"own_bytes": 1}) if reported else "") + source, tmp_path)
    why = "rank 1 on n1 failed in warm-up: ValueError: no such model"
    assert str(refused.value) == f"r with 16 images per rank: the search stopped for a reason other than memory: {why}."


def test_a_study_that_has_no_end_does_not_fit_in_silence(tmp_path: Path) -> None:
    with pytest.raises(GangError, match="for an unknown reason"):
        tried(memory({"own_bytes": 1}), tmp_path)
    with pytest.raises(GangError, match="for an unknown reason"):
        tried(end(), tmp_path)


@pytest.fixture
def counting_cgroup(tmp_path: Path) -> MemoryCgroup:
    """One in which the kernel has ended 7 processes so far."""
    (tmp_path / "memory.events").write_text("oom_kill 7\n")
    return MemoryCgroup(tmp_path, tmp_path)


def test_processes_that_the_kernel_ended_before_do_not_count(tmp_path: Path, counting_cgroup: MemoryCgroup) -> None:
    bounds = MemoryBounds(0.9, TOGETHER.together, counting_cgroup)
    with pytest.raises(GangError):
        tried(FAILED.format(type="ValueError", message="x"), tmp_path, bounds)
    kill = f"open({str(tmp_path / 'memory.events')!r}, 'w').write('oom_kill 8')\n"
    gone = 'say("gone", rank=1, local_rank=1, pid=9)\norder()\nsay("exit", code=1)\n'
    assert tried(kill + gone, tmp_path, bounds).why_not == "the kernel ended rank 1 on n1 for lack of memory"


def block(arm: str, number: int, block_s: tuple[float, ...]) -> Block:
    """A block of three steps."""
    return Block(
        study=STUDY.id, arm=arm, round=number, gang=0, ranks=tuple(range(len(block_s))), count=3, work=16.0,
        began_unix_s=1.0, seconds=block_s,
    )  # fmt: skip


def test_throughput_is_that_of_all_ranks_at_the_slowest_pace() -> None:
    blocks = [block("alone", 0, (0.1,)), block("ddp@2", 0, (1.0, 2.0)), block("ddp@2", 1, (1.0, 4.0))]
    assert throughput(blocks, STUDY) == pytest.approx((16 * 3 / 2 + 16 * 3 / 4) / 2)
    assert throughput([], STUDY) is None


def test_without_a_known_limit_there_is_no_share() -> None:
    assert MemoryBounds(0.9).peak([RankMemory(own_bytes=5)]) == (5, None)
    assert BatchTrial(16, True, "", 5).share is None


def test_the_fastest_is_one_that_fits() -> None:
    trials = [BatchTrial(8, True, samples_per_s=5.0), BatchTrial(16, True, samples_per_s=7.0), BatchTrial(24, True)]
    assert fastest([*trials, BatchTrial(32, False, samples_per_s=9.0)]) == trials[1]
    assert fastest([]) is None
