"""Copies count the bytes they move, and a wrong byte is found."""

from __future__ import annotations

import pytest
import torch

from pytest_ddpscale.worker.probes import memory
from pytest_ddpscale.worker.probes.memory import Copy, open_copy
from pytest_ddpscale.worker.probes.work import CannotProbeError

CPU = torch.device("cpu")
KINDS: tuple[str, ...] = ("memory-copy", "host-to-device", "device-to-host")


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_correct_once_it_is_made(kind: str) -> None:
    copy = Copy(kind, CPU, 4096)
    assert not copy.is_correct(), "nothing is copied yet"
    copy()
    assert copy.is_correct()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 100, 511])
def test_one_flipped_bit_is_found(kind: str, place: int) -> None:
    copy = Copy(kind, CPU, 4096)
    copy()
    copy.destination[place] ^= 1
    assert not copy.is_correct()


def test_within_a_device_each_byte_is_read_and_written_between_two_it_is_moved_once() -> None:
    assert [Copy(kind, CPU, 4096).work for kind in KINDS] == [8192, 4096, 4096]


def test_what_does_not_fit_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "buffer_bytes", lambda kind, device: 2**50)  # more than any address space
    with pytest.raises(CannotProbeError, match="not enough memory for copies of 1073741824 MiB"):
        open_copy("memory-copy", CPU)
