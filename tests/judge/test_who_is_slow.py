"""Who is slow is named wherever it is, whatever the machine's speed; noise names nobody; nothing unmeasured passes.

Lines of verdicts.txt have one place and one seed each: these are properties of all of them.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.judge.runs import Run

SIZES = st.integers(4, 12)


def named(line: str) -> list[int]:
    """Ranks of the culprits on one node."""
    return sorted(int(str(culprit.place.local_rank)) for culprit in Run(line).verdict().culprits)


@given(SIZES, st.data(), st.integers(0, 999))
def test_a_rank_slower_by_a_fifth_is_named_wherever_it_is(size: int, data: st.DataObject, seed: int) -> None:
    rank = data.draw(st.integers(0, size - 1))
    assert named(f"rank_uniformity:1.05@{size} forward noise=0.003 seed={seed} slow=*1.2/{rank}") == [rank]


@settings(max_examples=15)
@given(SIZES, st.data(), st.floats(0.01, 100), st.integers(0, 99))
def test_it_does_not_matter_how_fast_the_machine_is(size: int, data: st.DataObject, speed: float, seed: int) -> None:
    rank, slower = data.draw(st.integers(0, size - 1)), data.draw(st.sampled_from([1.03, 1.06, 1.1]))
    line = f"weak_scaling_efficiency:0.99@{size} noise=0.003 seed={seed} slow=*{slower}/{rank}"
    assert named(f"{line} slow=*{speed}") == named(line)


@given(st.sets(st.integers(0, 7), min_size=1, max_size=3), st.integers(0, 99))
def test_a_minority_is_named_whole(slow: set[int], seed: int) -> None:
    who = ",".join(map(str, slow))
    assert named(f"weak_scaling_efficiency:0.99@8 noise=0.001 seed={seed} slow=*1.2/{who}") == sorted(slow)


@pytest.mark.parametrize(("size", "noise"), [(2, 0.02), (4, 0.02), (8, 0.02), (8, 0.003), (16, 0.12)])
def test_noise_names_nobody(size: int, noise: float) -> None:
    """Each run by chance with a probability below 10⁻³."""
    runs = [f"weak_scaling_efficiency:1.1@{size} noise={noise} seed={seed}" for seed in range(25)]
    assert [line for line in runs if named(line)] == []


def test_six_and_a_half_per_cent_are_found_in_the_noise_of_a_gpu() -> None:
    line = "weak_scaling_efficiency:1.1@8 rounds=8 noise=0.003 slow=*1.065/3"
    assert sum(named(f"{line} seed={seed}") == [3] for seed in range(25)) >= 24


METRICS = ("throughput_per_gpu:1@4", "weak_scaling_efficiency:0.1@4", "replica_agreement:1@4", "step_time_p95:999@4")


@given(st.sampled_from(METRICS), st.integers(0, 3), st.integers(0, 8))
def test_nothing_unmeasured_passes(asked: str, rank: int, number: int) -> None:
    assert Run(f"{asked} lost/{rank}:{number}").verdict().outcome in ("inconclusive", "not_measured")
