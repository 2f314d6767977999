"""A GPU that ends its ranks is at fault after a second gang, and software that fails on all of them accuses nobody."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pytest_ddpscale.judge.gpu_errors import find_gpu_errors
from pytest_ddpscale.run.gpu_error_record import GpuErrors, RankGpuError
from pytest_ddpscale.run.records import RankPlace
from tests.rows import rows

LAUNCH_FAILURE = "CUDA error: unspecified launch failure"
# CUDA_VISIBLE_DEVICES=4,5,6,7
PLACES = [RankPlace("n1", rank, f"GPU-{4 + rank}", 4 + rank, f"00000000:{rank:02X}:00.0") for rank in range(4)]


def gang(number: int, *local_ranks: int, peers: int = 3, ranks: int = 4, uuids: bool = True) -> GpuErrors:
    errors = tuple(
        RankGpuError(
            host="n1", local_rank=rank, error=LAUNCH_FAILURE, device=f"GPU-{4 + rank}" if uuids else "", peers=peers,
            study=f"weak/{number}", arm="ddp@4",
        )
        for rank in local_ranks
    )  # fmt: skip
    return GpuErrors(gang=number, ranks=ranks, errors=errors, studies=(f"weak/{number}",))


@rows(
    ("gangs", "found"),
    [
        ([gang(0, 3)], [(7, False)]),
        ([gang(0, 3), gang(1, 3)], [(7, True)]),
        ([gang(0, 3, uuids=False), gang(1, 3)], [(7, True)]),  # the first ended before its GPUs were known
        ([gang(0, 3), gang(1, 2)], [(7, False), (6, False)]),
        # An error that hits a rank by chance.
        ([gang(0, 3), gang(1, 2), gang(2, 3)], [(7, False), (6, False)]),
        ([gang(0, 3), gang(1, 2), gang(2, 3), gang(3, 2)], [(7, False), (6, False)]),
        ([gang(0, 0, 1, 2, 3), gang(1, 0, 1, 2, 3)], []),  # software
        ([gang(0, 0, 1), gang(1, 0, 1)], []),  # half of them
        ([gang(0, 0, 1, ranks=8, peers=7), gang(1, 0, 1, ranks=8, peers=7)], [(4, True), (5, True)]),
        ([gang(0, 0, peers=0), gang(1, 0, peers=0)], [(4, False)]),  # alone at work, as any rank 0 is with bad software
        ([gang(0, 0, peers=0), gang(1, 0)], [(4, False)]),
        ([gang(0, 1, ranks=2, peers=1), gang(1, 1, ranks=2, peers=1)], [(5, False)]),
        ([gang(number, 1, ranks=2, peers=1) for number in range(3)], [(5, True)]),
        ([gang(0, 0, ranks=1, peers=0), gang(1, 0, ranks=1, peers=0)], [(4, False)]),
    ],
)
def test_two_gangs_with_peers_decide(gangs: Sequence[GpuErrors], found: list[tuple[int, bool]]) -> None:
    assert [(one.place.gpu_index, one.is_certain) for one in find_gpu_errors(gangs, PLACES)] == found


def test_the_gpu_is_named_with_its_error_and_what_to_do() -> None:
    (sure,) = find_gpu_errors([gang(0, 3), gang(1, 3)], PLACES)
    assert sure.text == (
        "CUDA error: unspecified launch failure ended its rank in 2 gangs, while its peers did the same work without "
        "such an error; look for its Xid: `dmesg | grep -i xid` on n1"
    )
    culprit = sure.culprit
    assert (culprit.gpu_index, culprit.gpu_uuid, culprit.local_rank) == (7, "GPU-7", 3)
    assert sure.studies == {"weak/0", "weak/1"}
    (suspect,) = find_gpu_errors([gang(0, 3)], PLACES)
    assert "ended its rank in 1 gang (not in a second one, so the software may be at fault)" in suspect.text
    assert not suspect.culprit.is_certain


@rows(
    "error",
    ["CUDA error: uncorrectable NVLink error detected", "CUDA error: Invalid access of peer GPU memory over nvlink"],
)
def test_an_error_of_nvlink_leaves_both_ends_suspects(error: str) -> None:
    gangs = [gang(number, 2, 3, ranks=8, peers=7) for number in range(3)]
    told = [replace(one, errors=tuple(replace(each, error=error) for each in one.errors)) for one in gangs]
    found = find_gpu_errors(told, PLACES)
    assert [(one.place.gpu_index, one.is_certain) for one in found] == [(6, False), (7, False)]
    assert "either end of the link may be at fault" in found[0].text
