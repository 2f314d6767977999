"""Who ended a gang, or keeps it from going on."""

from __future__ import annotations

import pytest

from pytest_ddpscale.launch.gang_failure import describe, describe_standstill, oom_kills, rank_ends
from pytest_ddpscale.launch.gang_owner import RankEnd
from tests.builders.launches import News
from tests.rows import rows

PLACE = "timed block (study weak/r, arm ddp@2, round 3)"


@pytest.fixture
def one() -> News:
    """Two ranks on one node."""
    return News("n1")


@pytest.fixture
def two() -> News:
    """Four ranks on two nodes."""
    return News("n1", "n2")


class TestKilled:
    def test_the_rank_is_named_with_the_signal_and_where_it_was(self, two: News) -> None:
        two.rank(2, phase="gathering")
        two.gone(3)
        two.failed(2, "RuntimeError", "Connection closed by peer")
        two.exit(0, [0, -15, 100, True])
        two.exit(1, [1, -9, 103, True], [0, 1, 102, False])
        assert describe(two.roll, 1, []) == f"rank 3 on n2 was killed by SIGKILL in {PLACE}"

    def test_the_kernel_may_have_ended_it_for_lack_of_memory(self, one: News) -> None:
        one.gone(1)
        one.exit(0, [1, -9, 101, True], oom_kills=1)
        assert describe(one.roll, 1, []).endswith(": the kernel's OOM killer ended it (oom_kill in /proc/vmstat)")

    def test_other_signals_are_not_the_kernels_lack_of_memory(self, one: News) -> None:
        one.gone(1)
        one.exit(0, [1, -11, 101, True], oom_kills=1)
        assert describe(one.roll, 1, []) == f"rank 1 on n1 was killed by SIGSEGV in {PLACE}"

    def test_its_last_lines_are_quoted(self, one: News) -> None:
        one.gone(1)
        one.say("words", 0, local_rank=1, lines=["E1121 19:37:51.123000 4711 a/api.py:874] double free"])
        one.say("words", 0, local_rank=0, lines=["of the other rank"])
        one.exit(0, [1, -6, 101, True])
        assert describe(one.roll, 1, []).endswith(f"SIGABRT in {PLACE}\nits last output:\n  double free")


class TestTorchrunKilled:
    """Its ranks end with it, and nobody reports how."""

    def test_no_rank_is_blamed_for_it(self, two: News) -> None:
        two.gone(1)
        two.failed(2, "RuntimeError", "Connection closed by peer")
        two.exit(0, code=-9)
        two.exit(1, [0, 1, 102, True], was_ended=True)
        said = describe(two.roll, 1, [])
        assert said.startswith("torchrun on n1 was killed by SIGKILL from outside this run: ")
        assert rank_ends(two.roll) == (RankEnd("local rank 0 on n2", 1),)

    def test_the_kernel_may_have_ended_it_for_lack_of_memory(self, one: News) -> None:
        one.exit(0, code=-9, oom_kills=1)
        assert describe(one.roll, 1, []).startswith("torchrun on n1 was killed by the kernel's OOM killer")

    def test_a_signal_that_torchrun_tells_is_told(self, one: News) -> None:
        one.exit(0, ended_pids=[100, 101])
        last = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15"
        assert describe(one.roll, 1, [last]).startswith("torchrun was killed by SIGTERM from outside this run: ")

    def test_one_that_its_agent_ended_was_not_killed(self, two: News) -> None:
        two.gone(1)
        two.exit(0, [1, -9, 101, True])
        two.exit(1, code=-9, was_ended=True)
        assert describe(two.roll, 1, []) == f"rank 1 on n1 was killed by SIGKILL in {PLACE}"


class TestAborted:
    """NCCL's watchdog ends ranks by SIGABRT because of what happened to another one."""

    def test_a_kill_elsewhere_explains_it(self, two: News) -> None:
        two.gone(0)
        two.exit(0, [0, -6, 100, True])
        two.gone(2)
        two.exit(1, [0, -9, 102, True])
        assert describe(two.roll, 1, []) == f"rank 2 on n2 was killed by SIGKILL in {PLACE}"

    def test_an_error_of_another_rank_explains_it(self, two: News) -> None:
        two.gone(0)
        two.exit(0, [0, -6, 100, True])
        two.failed(2, "AcceleratorError", "an illegal memory access was encountered")
        two.exit(1, [0, 1, 102, True])
        assert "rank 2 on n2 failed" in describe(two.roll, 1, [])


class TestLeftEarly:
    def test_its_partners_error_is_a_consequence(self, two: News) -> None:
        two.failed(0, "DistBackendError", "NCCL communicator was aborted")
        two.gone(3)
        two.exit(0, [0, 1, 100, True])
        assert describe(two.roll, 1, []) == f"rank 3 on n2 left early, with exit code 0, in {PLACE}"

    def test_a_rank_that_torchrun_ended_after_anothers_failure_did_not(self, one: News) -> None:
        one.failed(1, "ValueError", "no such model")
        one.gone(0)
        one.exit(0, [1, 1, 101, True], ended_pids=[100])
        assert describe(one.roll, 1, []) == f"rank 1 on n1 failed in {PLACE}: ValueError: no such model"

    def test_nor_one_of_a_node_whose_torchrun_ended_it(self, two: News) -> None:
        two.gone(0)
        two.exit(0, ended_pids=[100])
        two.failed(2, "ValueError", "no such model")
        assert describe(two.roll, 1, []).startswith("rank 2 on n2 failed")


class TestFailed:
    def test_an_error_of_its_own_comes_before_what_others_say_of_a_lost_partner(self, two: News) -> None:
        two.failed(0, "RuntimeError", "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:3456")
        two.failed(1, "DistNetworkError", "The client socket has timed out")
        two.failed(3, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB")
        assert describe(two.roll, 1, []) == (
            f"rank 3 on n2 failed in {PLACE}: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB; "
            "2 more ranks failed after it"
        )

    def test_who_hosted_the_store_and_failed_comes_before_who_missed_it_then(self, one: News) -> None:
        one.failed(1, "DistNetworkError", "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote …")
        one.failed(0, "ValueError", "no such model")
        assert describe(one.roll, 1, []).startswith("rank 0 on n1 failed")

    def test_if_all_lost_their_partner_the_first_to_say_so_is_named(self, two: News) -> None:
        two.failed(2, "DistBackendError", "NCCL error: unhandled system error")
        two.failed(0, "RuntimeError", "Connection reset by peer")
        assert describe(two.roll, 1, []) == (
            f"rank 2 on n2 failed in {PLACE}: DistBackendError: NCCL error: unhandled system error; "
            "1 more rank failed after it"
        )

    @pytest.mark.parametrize(
        ("type_", "message"),
        [
            (
                "DistBackendError",
                "NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error, NCCL version 2.27.5\n"
                "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'illegal address'",
            ),
            ("DistBackendError", "NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error"),
            ("OSError", "[Errno 28] No space left on device: '/mnt/datastore/runs/x'"),
            ("OSError", "[Errno 28] No space left on device: '/store/runs/x'"),
        ],
    )
    def test_what_a_rank_says_of_its_own_gpu_or_disk_is_its_own(self, two: News, type_: str, message: str) -> None:
        two.failed(0, "RuntimeError", "Connection reset by peer")
        two.failed(3, type_, message)
        assert describe(two.roll, 1, []).startswith(f"rank 3 on n2 failed in {PLACE}: {type_}")

    @pytest.mark.parametrize("message", ["failed to wait on the store", "c10d::TCPStore::get: no answer"])
    def test_a_store_that_is_gone_is_a_lost_partner(self, two: News, message: str) -> None:
        two.failed(0, "RuntimeError", message)
        two.failed(3, "ValueError", "no such model")
        assert describe(two.roll, 1, []).startswith("rank 3 on n2 failed")


class TestNobodySaidAnything:
    def test_the_last_output_speaks(self, one: News) -> None:
        lines = [f"line {number}" for number in range(20)] + ["W1121 19:37:51.1 47 a/run.py:7] [default0]:slow"]
        quoted = "".join(f"\n  line {number}" for number in range(9, 20))
        expected = f"the gang exited with code 127 without a report from a rank: slow\nlast output:{quoted}\n  slow"
        assert describe(one.roll, 127, lines) == expected
        lines = ["srun: unrecognized option '--bogus'", 'Try "srun --help" for more information']
        assert "a rank: srun: unrecognized option '--bogus'\nlast" in describe(one.roll, 255, lines)

    def test_what_a_terminal_would_act_on_is_left_out(self, one: News) -> None:
        assert describe(one.roll, 1, ["\x1b[31mred\x07"]).endswith("\n  [31mred")


class TestStandstill:
    def test_a_stopped_rank_is_named_even_if_another_is_further_behind(self, two: News) -> None:
        for rank in range(4):
            two.rank(rank, steps=rank, state="T" if rank == 3 else "S")
        assert describe_standstill(two.roll) == f"rank 3 on n2 is stopped (SIGSTOP, or a debugger) in {PLACE}"

    def test_one_rank_that_is_behind_is_named_with_its_last_lines(self, two: News) -> None:
        for rank in range(4):
            two.rank(rank, steps=2 if rank == 1 else 3, state="R")
        two.say("words", 0, local_rank=1, lines=["Current thread 0x1 (most recent call first):"])
        assert describe_standstill(two.roll) == (
            f"rank 1 on n1, computing, is furthest behind of 4 ranks, in {PLACE}\nits last output:\n"
            "  Current thread 0x1 (most recent call first):"
        )

    def test_a_rank_that_has_not_come_into_the_block_is_behind_those_that_train(self, two: News) -> None:
        for rank in range(4):
            two.rank(rank, steps=rank)
        two.rank(2, entered=11, phase="gathering", steps=900)
        assert describe_standstill(two.roll).startswith("rank 2 on n2 is furthest behind of 4 ranks, in gathering")

    def test_ranks_that_take_no_part_are_ahead(self) -> None:
        news = News("n1", ranks_per_node=3)
        news.rank(0)
        news.rank(1)
        news.rank(2, entered=13, phase="gathering", steps=0)
        assert (
            describe_standstill(news.roll)
            == f"rank 0 on n1, rank 1 on n1 are furthest behind of 3 ranks, in {PLACE}: at least one of them is stuck"
        )

    def test_of_those_equally_far_behind_one_that_waits_for_its_device_is_named(self, two: News) -> None:
        for rank in range(4):
            two.rank(rank, state="D" if rank == 2 else "S")
        assert describe_standstill(two.roll) == f"rank 2 on n2 is waiting for a device or a disk in {PLACE}"

    def test_a_rank_that_has_not_begun_to_connect_is_named_and_not_those_that_wait_for_it(self, two: News) -> None:
        line = "n1:7:9 [0] NCCL INFO ncclCommInitRankConfig comm 0x5 rank {} nranks 3 cudaDev 0 commId 0x1 - Init {}"
        for rank in range(4):
            two.rank(rank, entered=13 if rank == 3 else 12)
            said = ["COMPLETE"] if rank == 1 else ["COMPLETE", "START"]
            nccl = [line.format(rank, word) for word in said]
            two.say("words", rank // 2, local_rank=rank % 2, lines=[f"stack of {rank}"], nccl=nccl)
        assert describe_standstill(two.roll).startswith(
            "rank 1 on n1 has not begun to connect a communicator of NCCL, for which rank 0 on n1, rank 2 on n2 wait, "
            f"in {PLACE}\nits last output:\n  stack of 1\n"
        )

    def test_if_all_or_none_connect_nobody_is_singled_out(self, two: News) -> None:
        for words in ([], ["NCCL INFO comm 0x5 rank 0 nranks 2 - Init START"]):
            for rank in range(4):
                two.rank(rank, entered=13 if rank > 1 else 12)
                two.say("words", rank // 2, local_rank=rank % 2, nccl=words)
            assert "at least one of them is stuck" in describe_standstill(two.roll)

    def test_one_that_said_nothing_may_connect_all_the_same(self, two: News) -> None:
        for rank in range(4):
            two.rank(rank, entered=13 if rank == 3 else 12)
        for rank in (0, 2, 3):
            two.say("words", rank // 2, local_rank=rank % 2, nccl=["comm 0x5 rank 0 nranks 3 - Init START"])
        assert "at least one of them is stuck" in describe_standstill(two.roll)

    def test_those_that_have_not_come_up_are_named(self, two: News) -> None:
        two.rank(0)
        two.rank(2, entered=13)
        assert describe_standstill(two.roll, ranks_per_node=2) == (
            "2 of 4 ranks have not come up: local rank 1 on n1, local rank 1 on n2, still importing torch? Look at the "
            "file system that holds the environment"
        )

    def test_if_all_have_come_as_far_nobody_is_accused(self, two: News) -> None:
        for rank in range(4):
            two.rank(rank)
        assert describe_standstill(two.roll) == "all ranks are stuck in timed block"
        for rank in range(2):
            two.rank(rank, state="D")
        assert describe_standstill(two.roll) == "all ranks are stuck in timed block"
        assert describe_standstill(two.roll, ["n2"]).startswith("the agent on n2 sent nothing meanwhile: stopped, or ")


class TestNccl:
    """NCCL's warnings go to a file of their own, not to the rank's output."""

    def test_its_last_lines_follow_a_ranks_own_error(self, two: News) -> None:
        two.failed(3, "DistBackendError", "NCCL error: unhandled system error")
        two.say("words", 1, local_rank=0, nccl=["of another rank"])
        two.say("words", 1, local_rank=1, nccl=[f"n2:1:1 [1] NCCL WARN {number}" for number in range(20)])
        two.exit(1, [1, 1, 103, True])
        message, _, lines = describe(two.roll, 1, []).partition("\nlast lines of its NCCL log:\n")
        assert message == f"rank 3 on n2 failed in {PLACE}: DistBackendError: NCCL error: unhandled system error"
        assert lines.splitlines() == [f"  n2:1:1 [1] NCCL WARN {number}" for number in range(20)]

    def test_and_the_words_of_one_that_was_killed_or_stands_still(self, one: News) -> None:
        one.rank(0, entered=13)
        one.rank(1)
        one.say("words", 0, local_rank=1, lines=["watchdog"], nccl=["n1:1:1 [1] NCCL WARN timed out"])
        quoted = "\nits last output:\n  watchdog\nlast lines of its NCCL log:\n  n1:1:1 [1] NCCL WARN timed out"
        assert describe_standstill(one.roll).endswith(quoted)
        one.gone(1)
        one.exit(0, [1, -6, 101, True])
        assert describe(one.roll, 1, []).endswith(quoted)

    @pytest.mark.parametrize(
        ("type_", "message"),
        [("AcceleratorError", "CUDA error: an illegal memory access"), ("ValueError", "Loss is NaN")],
    )
    def test_they_are_left_out_where_nccl_did_not_raise_the_error(self, one: News, type_: str, message: str) -> None:
        one.failed(1, type_, message)
        one.say("words", 0, local_rank=1, lines=["Killed"], nccl=["n1:1:1 [1] NCCL INFO Channel 00/0"])
        one.exit(0, [1, 1, 101, True])
        assert describe(one.roll, 1, []) == f"rank 1 on n1 failed in {PLACE}: {type_}: {message}"

    def test_also_of_a_rank_that_was_killed(self, one: News) -> None:
        one.gone(1)
        one.say("words", 0, local_rank=1, lines=["Killed"], nccl=["n1:1:1 [1] NCCL INFO Channel 00/0"])
        one.exit(0, [1, -9, 101, True])
        assert describe(one.roll, 1, []).endswith("\nits last output:\n  Killed")


class TestFirstLine:
    """It is a headline; details follow on further lines."""

    @pytest.mark.parametrize(
        ("message", "said", "more"),
        [
            ("CUDA error: shape mismatch\nCompile with TORCH_USE_CUDA_DSA", "CUDA error: shape mismatch", 1),
            ("backend='inductor' raised:\nTypeError: no\nSet TORCHDYNAMO_VERBOSE=1",
             "backend='inductor' raised: TypeError: no", 1),
            ("Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
             '  File "a.py", line 1\nRuntimeError: image 3 is broken\n',
             "Caught RuntimeError in DataLoader worker process 0. RuntimeError: image 3 is broken", 3),
            ("Caught OSError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
             '  File "/opt/NCCL/a.py", line 1\nOSError: image 3 is broken\n',
             "Caught OSError in DataLoader worker process 0. OSError: image 3 is broken", 3),
            ("", "", 0),
        ],
    )  # fmt: skip
    def test_it_has_the_error_and_how_many_failed_after_it(self, two: News, message: str, said: str, more: int) -> None:
        two.failed(0, "RuntimeError", message)
        two.failed(3, "DistBackendError", "NCCL error")
        first, *rest = describe(two.roll, 1, []).split("\n")
        assert first == f"rank 0 on n1 failed in {PLACE}: RuntimeError: {said}; 1 more rank failed after it"
        assert rest == (message.rstrip().split("\n")[-more:] if more else [])


NCCL_SAYS = (
    "NCCL error in: /pytorch/ProcessGroupNCCL.cpp:3690, unhandled system error, NCCL version 2.27.7\n"
    "ncclSystemError: System call failed.\nLast error:\n"
)
NO_ANSWER = "NET/IB : Got completion from peer 10.0.0.{}<55921> with {} opcode=0 localGid fe80::1 hca mlx5_3"
LOOK = "did not answer over mlx5_3 (status 12): look at adapter, cable and switch"


class TestCollective:
    """The first line of a failed collective is what NCCL or gloo say last, in words where the kind is known."""

    @rows(
        ("last", "said"),
        [
            ("Error while creating segment /dev/shm/nccl-A (size 9637888), error: No space left on device (28)",
             "/dev/shm is full: `df -h /dev/shm`; a container gets more by --shm-size"),
            ("Call to ibv_x failed, Cannot allocate memory",
             "Call to ibv_x failed, Cannot allocate memory: raise the limit of locked memory (`ulimit -l unlimited`)"),
            ("Bootstrap : no socket interface found\nNCCL_SOCKET_IFNAME=eth9",
             "no socket interface found: NCCL_SOCKET_IFNAME=eth9 names none of this node's"),
            ("Bootstrap : no socket interface found\nGLOO_SOCKET_IFNAME=lo",
             "no socket interface found: does /etc/nccl.conf or ~/.nccl.conf set NCCL_SOCKET_IFNAME?"),
            ("rv != -1. Unable to find address for: eth9", "no socket interface eth9: GLOO_SOCKET_IFNAME names it"),
            (NO_ANSWER.format(2, "status=IBV_WC_RETRY_EXC_ERR(12)"), f"n2 (10.0.0.2) {LOOK}"),
            (NO_ANSWER.format(9, "error 12,"), f"10.0.0.9 {LOOK}"),
            (NO_ANSWER.format(1, "error 12,"), f"10.0.0.1 {LOOK}"),  # a bridge's
            (NO_ANSWER.format(2, "status=5"), NO_ANSWER.format(2, "status=5")),
            ("", "NCCL error, unhandled system error"),
            ("x" * 161, "x" * 159 + "…"),
        ],
    )  # fmt: skip
    def test_the_first_line_is_the_cause(self, last: str, said: str) -> None:
        news = News("n1", "n2")
        for node in range(2):
            news.say("up", node, version="1", addresses=["10.0.0.1", "10.0.0.2"][: node + 1])
        news.failed(0, "DistBackendError", NCCL_SAYS + last)
        first, _, rest = describe(news.roll, 1, []).partition("\n")
        assert first == f"rank 0 on n1 failed in {PLACE}: DistBackendError: {said}"
        assert rest == (NCCL_SAYS + last).rstrip()

    def test_gloo_says_it_without_its_source(self, one: News) -> None:
        one.failed(
            0, "RuntimeError", "[/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [fe80::1]:34"
        )
        first = describe(one.roll, 1, []).splitlines()[0]
        assert first.endswith(": RuntimeError: Connection closed by peer [fe80::1]:34")


class TestRankEnds:
    def test_ranks_that_torchrun_saw_fail_come_before_those_that_are_only_gone(self, two: News) -> None:
        two.gone(0)
        two.gone(3)
        two.exit(0, oom_kills=1)
        two.exit(1, [1, -9, 103, True], oom_kills=2)
        assert rank_ends(two.roll) == (RankEnd("rank 3 on n2", -9), RankEnd("rank 0 on n1", None))
        assert oom_kills(two.roll) == 3

    def test_those_that_torchrun_ended_itself_are_none(self, one: News) -> None:
        one.gone(0)
        one.gone(1)
        one.exit(0, [1, -11, 101, True], [0, -9, 100, False], ended_pids=[100])
        assert rank_ends(one.roll) == (RankEnd("rank 1 on n1", -11),)

    def test_a_gang_of_which_nothing_is_known_has_none(self, one: News) -> None:
        assert (rank_ends(one.roll), oom_kills(one.roll)) == ((), 0)
