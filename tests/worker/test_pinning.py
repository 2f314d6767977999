"""Ranks on a CPU have cores of their own where there are enough."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.worker.pinning import share_of_cores


@given(st.sets(st.integers(0, 255), min_size=1), st.integers(1, 64))
def test_ranks_get_equal_shares_that_do_not_overlap(cores: set[int], ranks: int) -> None:
    shares = [share_of_cores(sorted(cores), rank, ranks) for rank in range(ranks)]
    if len(cores) < ranks:
        assert all(set(share) == cores for share in shares)
    else:
        assert {len(share) for share in shares} == {len(cores) // ranks}
        assert len({core for share in shares for core in share}) == ranks * (len(cores) // ranks)


def test_neighbouring_cores_belong_to_one_rank() -> None:
    assert share_of_cores([8, 9, 10, 11], 1, 2) == [10, 11]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin processes")
def test_a_process_stays_on_its_share() -> None:
    code = (
        "import os; from pytest_ddpscale.worker.pinning import *; "
        "before = sorted(os.sched_getaffinity(0)); pin_to_cores(0, len(before)); "
        "assert os.sched_getaffinity(0) == {before[0]}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
