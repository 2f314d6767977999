"""A matrix product is timed in full precision, and a wrong number in it is found."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pytest_ddpscale.plan.operation import MatmulPrecision
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.probes.matmul import Matmul, open_matmul
from pytest_ddpscale.worker.probes.work import CannotProbeError

CPU = torch.device("cpu")
# torch multiplies fp8 on CPUs too, slowly: good enough to see it come out right.
MULTIPLIES_FP8 = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", "CPU")
needs_fp8 = pytest.mark.skipif(not MULTIPLIES_FP8, reason=f"torch {torch.__version__} has no fp8 product on CPUs")
PRECISIONS = ("fp32", "fp16", "bf16", pytest.param("fp8", marks=needs_fp8))
SIZE = 256
FP8_SIZE = 128  # without units for it a CPU takes 0.1 s, and 5 s for 512


def multiplied(precision: MatmulPrecision, size: int = SIZE) -> Matmul:
    matmul = Matmul(precision, CPU, FP8_SIZE if precision == "fp8" else size)
    matmul()
    return matmul


def flip(numbers: torch.Tensor, place: tuple[int, int], bit: int) -> None:
    """Flip one bit of one number."""
    words = numbers.view(torch.int32 if numbers.element_size() == 4 else torch.int16)
    words[place] ^= 1 << bit


def lowest_exponent_bit(numbers: torch.Tensor) -> int:
    return {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}[numbers.dtype]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_timed_is_the_product_of_random_operands(precision: MatmulPrecision) -> None:
    matmul = multiplied(precision)
    exact = matmul._left.float() @ matmul._right.float()
    assert torch.allclose(matmul.product.float(), exact, rtol=0.02, atol=0.3)
    assert 0.9 < matmul.product.float().std().item() / len(exact) ** 0.5 < 1.1, "of normal numbers"


def test_work_is_two_operations_for_each_of_n_cubed() -> None:
    assert Matmul("fp32", CPU, SIZE).work == 2 * SIZE**3


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_flipped_bit_of_the_timed_product_is_found(precision: MatmulPrecision) -> None:
    matmul = multiplied(precision)
    for place, bit in [((0, 0), 0), ((17, 100), lowest_exponent_bit(matmul.product)), ((-1, -1), 0)]:
        flip(matmul.product, place, bit)
        assert not matmul.is_correct(), "which leaves a sound product, of the same operands"


class FaultyMatmul(Matmul):
    """Gets one number wrong each time, so that repeating it shows nothing."""

    def __call__(self) -> None:
        super().__call__()
        flip(self.product, (3, 99), lowest_exponent_bit(self.product))


class NoNumbers(Matmul):
    def __call__(self) -> None:
        self.product.fill_(float("nan"))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kind", [FaultyMatmul, NoNumbers])
def test_a_unit_that_is_always_wrong_is_found(kind: type[Matmul], precision: MatmulPrecision) -> None:
    matmul = kind(precision, CPU, SIZE)
    matmul()
    assert not matmul.is_correct()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_exact_product_is_whole_numbers_that_every_precision_holds(precision: MatmulPrecision) -> None:
    matmul = multiplied(precision, size=512)
    assert matmul.is_correct()
    product = matmul.product.double()
    assert torch.equal(product, product.round())
    assert 0 < product.abs().max().item() <= 128
    assert (matmul._left.float() != 0).sum(dim=1).tolist() == [128] * len(product)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("size", [528, 720, 1136])  # no multiples of 128
def test_any_multiple_of_16_has_an_exact_product(size: int, precision: MatmulPrecision) -> None:
    matmul = multiplied(precision, size)
    assert matmul.is_correct()
    terms = (matmul._left.float() != 0).sum(dim=1)
    assert 128 <= int(terms.min()) <= int(terms.max()) < 256, "which bf16 holds exactly"
    assert bool((matmul._left != 0).any(dim=0).all()), "all columns take part"
    faulty = FaultyMatmul(precision, CPU, size)
    faulty()
    assert not faulty.is_correct()


def test_the_size_of_the_name_is_multiplied() -> None:
    usual, named = open_matmul("fp32", CpuDevice()), open_matmul("fp32", CpuDevice(), size=528)
    assert (usual.work, named.work) == (2.0 * 1024**3, 2.0 * 528**3)
    assert named.product.shape == (528, 528)


def test_a_size_that_would_get_ranks_killed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**34))
    with pytest.raises(CannotProbeError, match=r"8 ranks on this host need 5120 MiB each; 16384 MiB are available"):
        open_matmul("fp32", CpuDevice(), size=16384, sharers=8)


def test_a_precision_that_the_device_lacks_is_refused_in_words() -> None:
    with pytest.raises(CannotProbeError, match="fp8 matrix products need a GPU with fp8 units; this device is a CPU"):
        open_matmul("fp8", CpuDevice())


def test_matrices_beyond_memory_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**60))
    with pytest.raises(CannotProbeError, match="not enough memory for matrices of 16777216 x 16777216: "):
        open_matmul("fp32", CpuDevice(), size=2**24)  # more than any address space


class Restless(Matmul):
    """A kernel that never gives the same bits twice."""

    relative = 0.0

    def __call__(self) -> None:
        super().__call__()
        if not torch.equal(self.product, self.product.round()):  # exact products are not rounded
            self.product += self.relative * torch.randn_like(self.product) * len(self.product) ** 0.5


@pytest.mark.parametrize(("relative", "is_correct"), [(1e-7, True), (1e-2, False)])
def test_a_kernel_may_add_in_another_order_each_time_and_not_be_wrong_in_another_way(
    relative: float, is_correct: bool
) -> None:
    matmul = Restless("fp32", CPU, SIZE)
    matmul.relative = relative
    matmul()
    assert matmul.is_correct() is is_correct
