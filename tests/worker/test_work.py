"""The work of probes: right results count, a wrong number is found, and memory that is not there is told in words."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from pytest_ddpscale.plan.operation import MatmulPrecision
from pytest_ddpscale.worker import work
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.work import (
    CannotProbeError,
    Copy,
    KnownValues,
    Matmul,
    memory_permitting,
    open_copy,
    open_matmul,
    refuse_more_than_is_free,
)
from tests.rows import rows

CPU = torch.device("cpu")
# torch multiplies fp8 on CPUs too, slowly: good enough to see it come out right.
MULTIPLIES_FP8 = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", "CPU")
needs_fp8 = pytest.mark.skipif(not MULTIPLIES_FP8, reason=f"torch {torch.__version__} has no fp8 product on CPUs")
WITHOUT_FP8: tuple[MatmulPrecision, ...] = ("fp32", "fp16", "bf16")
PRECISIONS = (*WITHOUT_FP8, pytest.param("fp8", marks=needs_fp8))
SIZE = 256


def multiplied(precision: MatmulPrecision, size: int = SIZE, kind: type[Matmul] = Matmul) -> Matmul:
    # Without units for fp8 a CPU takes 0.1 s for 128 rows, and 5 s for 512.
    matmul = kind(precision, CPU, 128 if precision == "fp8" else size)
    matmul()
    return matmul


def flip(numbers: torch.Tensor, place: tuple[int, int], bit: int) -> None:
    """Flip one bit of one number."""
    words = numbers.view(torch.int32 if numbers.element_size() == 4 else torch.int16)
    words[place] ^= 1 << bit


def lowest_exponent_bit(numbers: torch.Tensor) -> int:
    return {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}[numbers.dtype]


class FaultyMatmul(Matmul):
    """Gets one number wrong each time, so that repeating it shows nothing."""

    def __call__(self) -> None:
        super().__call__()
        flip(self.product, (3, 99), lowest_exponent_bit(self.product))


class NoNumbers(Matmul):
    def __call__(self) -> None:
        self.product.fill_(float("nan"))


class Restless(Matmul):
    """A kernel that never gives the same bits twice."""

    relative = 1e-7

    def __call__(self) -> None:
        super().__call__()
        if not torch.equal(self.product, self.product.round()):  # exact products are not rounded
            self.product += self.relative * torch.randn_like(self.product) * len(self.product) ** 0.5


class Wild(Restless):
    relative = 1e-2


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_timed_is_a_product_of_normal_numbers_and_a_flipped_bit_of_it_is_found(
    precision: MatmulPrecision,
) -> None:
    matmul = multiplied(precision)
    exact = matmul._left.float() @ matmul._right.float()
    assert torch.allclose(matmul.product.float(), exact, rtol=0.02, atol=0.3)
    assert 0.9 < matmul.product.float().std().item() / len(exact) ** 0.5 < 1.1
    for place, bit in [((0, 0), 0), ((17, 100), lowest_exponent_bit(matmul.product)), ((-1, -1), 0)]:
        flip(matmul.product, place, bit)
        assert not matmul.is_correct(), "which leaves a sound product, of the same operands"
    assert matmul.is_correct()
    assert_exact(matmul)


def assert_exact(matmul: Matmul) -> None:
    """That it was of whole numbers that every precision holds, with all columns."""
    product, operands = matmul.product.double(), matmul._left.float() != 0
    terms = operands.sum(dim=1)
    assert torch.equal(product, product.round())
    assert 128 <= terms.min() <= terms.max() < 256, "which bf16 holds exactly"
    assert 0 < product.abs().max() <= terms.max()
    assert operands.any(dim=0).all()


@rows("size", [512, 528, 720, 1136])  # multiples of 16, of 128 only the first
def test_a_unit_that_is_always_wrong_is_found_at_any_size(size: int) -> None:
    for precision in WITHOUT_FP8:
        matmul = multiplied(precision, size)
        assert matmul.is_correct()
        assert_exact(matmul)
        for kind in (FaultyMatmul, NoNumbers):
            assert not multiplied(precision, size, kind).is_correct()


@rows(("kind", "is_correct"), [(Restless, True), (Wild, False)])
def test_a_kernel_may_add_in_another_order_each_time_and_not_be_wrong_in_another_way(
    kind: type[Matmul], is_correct: bool
) -> None:
    assert multiplied("fp32", kind=kind).is_correct() is is_correct


def test_the_size_of_the_name_is_multiplied() -> None:
    usual, named = open_matmul("fp32", CpuDevice()), open_matmul("fp32", CpuDevice(), size=528)
    assert (usual.work, named.work) == (2.0 * 1024**3, 2.0 * 528**3)
    assert named.product.shape == (528, 528)


# More than any address space.
ENDLESS = 2**24


@rows(
    ("opened", "message"),
    [
        (
            lambda: open_matmul("fp32", CpuDevice(), sharers=2**40),
            r"1099511627776 ranks on this host need 20 MiB each; 1099511627776 MiB are available. Choose a smaller",
        ),
        (lambda: open_matmul("fp32", CpuDevice(), ENDLESS), "not enough memory for matrices of 16777216 x 16777216: "),
        (lambda: open_copy("memory-copy", CPU), "not enough memory for copies of 1073741824 MiB"),
        (
            lambda: open_matmul("fp8", CpuDevice()),
            "fp8 matrix products need a GPU with fp8 units; this device is a CPU",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, opened: Callable[[], object], message: str
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**60))
    monkeypatch.setattr(work, "buffer_bytes", lambda kind, device: 2**50)
    with pytest.raises(CannotProbeError, match=message):
        opened()
    refuse_more_than_is_free(2**61, sharers=1, device=torch.device("cuda"))  # GPUs say themselves how much they have


@rows(
    ("error", "kind", "message"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried."),
            CannotProbeError,
            "not enough memory for a message: C",
        ),
        # Of pinned host memory.
        (RuntimeError("CUDA error: out of memory\nKernel errors"), CannotProbeError, "not enough memory for a message"),
        (RuntimeError("CUDA error: an illegal memory access"), RuntimeError, "CUDA error: an illegal"),
    ],
)
def test_a_gpu_without_memory_cannot_probe_and_other_failures_stay(
    error: Exception, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"^{message}.*$") as found, memory_permitting("a message"):
        raise error
    assert type(found.value) is kind


@rows(("kind", "counts"), [("memory-copy", 2), ("host-to-device", 1), ("device-to-host", 1)])
def test_a_copy_is_correct_once_it_is_made_and_a_flipped_bit_is_found(kind: str, counts: int) -> None:
    copy = Copy(kind, CPU, 4096)
    assert copy.work == 4096 * counts, "within a device each byte is read and written"
    assert not copy.is_correct(), "nothing is copied yet"
    for place in (0, 100, 511):
        copy()
        assert copy.is_correct()
        copy.destination[place] ^= 1
        assert not copy.is_correct()


LENGTH = 2000
Message = Callable[..., torch.Tensor]


@pytest.fixture
def message_of(monkeypatch: pytest.MonkeyPatch) -> Message:
    """A member's message, in short parts."""
    monkeypatch.setattr(work, "_NUMBERS_AT_ONCE", 251 * 2)

    def message(member: int, numbers: int = LENGTH) -> torch.Tensor:
        tensor = torch.empty(numbers)
        KnownValues(CPU, numbers).fill(tensor, member)
        return tensor

    return message


def test_a_message_has_its_values_in_all_parts(message_of: Message) -> None:
    for numbers in (1, 250, 251, 502, 503, LENGTH):
        assert message_of(5, numbers).tolist() == [i % 251 + 5 for i in range(numbers)]


@rows("begin", [0, 1, 667, 1400])
def test_a_share_is_known_wherever_it_begins_and_a_wrong_number_or_sender_is_found(
    message_of: Message, begin: int
) -> None:
    known, total = KnownValues(CPU, LENGTH), torch.stack([*map(message_of, range(3))]).sum(dim=0)
    for whole, is_right, whose in ((message_of(5), known.is_message, 5), (total, known.is_sum, 3)):
        share = whole[begin : begin + 600]
        assert is_right(whole, whose)
        assert is_right(share, whose, begin)
        assert not is_right(share, whose, begin + 1)
        assert not is_right(share, whose - 1, begin)
        for place in (0, 300, 599):
            share[place] += 1
            assert not is_right(share, whose, begin)
            share[place] -= 1
