"""Messages that all ranks know: equal ones match, and a wrong number, place or sender does not."""

from __future__ import annotations

import pytest
import torch

from pytest_ddpscale.worker.probes import known_values
from pytest_ddpscale.worker.probes.known_values import KnownValues

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_values, "_NUMBERS_AT_ONCE", 251 * 2)


def message(member: int, numbers: int) -> torch.Tensor:
    tensor = torch.empty(numbers)
    KnownValues(CPU, numbers).fill(tensor, member)
    return tensor


@pytest.mark.parametrize("numbers", [1, 250, 251, 502, 503, 2000])
def test_a_message_has_its_values_in_all_parts(numbers: int) -> None:
    assert message(5, numbers).tolist() == [i % 251 + 5 for i in range(numbers)]
    assert KnownValues(CPU, numbers).is_message(message(5, numbers), 5)


def test_the_message_of_another_member_is_wrong() -> None:
    assert not KnownValues(CPU, 2000).is_message(message(5, 2000), 6)


@pytest.mark.parametrize("place", [0, 600, 1999])
def test_one_wrong_number_is_found(place: int) -> None:
    one, both = message(1, 2000), message(0, 2000) + message(1, 2000)
    one[place] += 1
    both[place] += 1
    assert not KnownValues(CPU, 2000).is_message(one, 1)
    assert not KnownValues(CPU, 2000).is_sum(both, 2)


@pytest.mark.parametrize("begin", [0, 1, 667, 1400])
def test_a_share_of_a_message_is_known_wherever_it_begins(begin: int) -> None:
    known, share = KnownValues(CPU, 2000), message(5, 2000)[begin : begin + 600]
    assert known.is_message(share, 5, begin)
    assert not known.is_message(share, 5, begin + 1)
    assert not known.is_message(share, 4, begin)


@pytest.mark.parametrize("begin", [0, 1, 667, 1400])
def test_a_share_of_a_sum_is_known_wherever_it_begins(begin: int) -> None:
    total = torch.stack([message(member, 2000) for member in range(3)]).sum(dim=0)
    known = KnownValues(CPU, 2000)
    assert known.is_sum(total[begin : begin + 600], 3, begin)
    assert not known.is_sum(total[begin : begin + 600], 3, begin + 1)
    assert not known.is_sum(total[begin : begin + 600], 2, begin)


def test_sums_over_very_many_ranks_are_exact_in_fp32() -> None:
    assert 48_000 * (250 + 96) < 2**24
