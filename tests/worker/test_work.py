"""The work of probes: right results count, a wrong number is found, and memory that is not there is told in words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
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
    peer_of,
    refuse_more_than_is_free,
)

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


COPIES: tuple[str, ...] = ("memory-copy", "host-to-device", "device-to-host")


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_is_correct_once_it_is_made(kind: str) -> None:
    copy = Copy(kind, CPU, 4096)
    assert not copy.is_correct(), "nothing is copied yet"
    copy()
    assert copy.is_correct()


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("place", [0, 100, 511])
def test_one_flipped_bit_is_found(kind: str, place: int) -> None:
    copy = Copy(kind, CPU, 4096)
    copy()
    copy.destination[place] ^= 1
    assert not copy.is_correct()


def test_within_a_device_each_byte_is_read_and_written_between_two_it_is_moved_once() -> None:
    assert [Copy(kind, CPU, 4096).work for kind in COPIES] == [8192, 4096, 4096]


def test_what_does_not_fit_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "buffer_bytes", lambda kind, device: 2**50)  # more than any address space
    with pytest.raises(CannotProbeError, match="not enough memory for copies of 1073741824 MiB"):
        open_copy("memory-copy", CPU)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),  # pinned host memory
    ],
)
def test_a_gpu_without_memory_cannot_probe(error: RuntimeError) -> None:
    with (
        pytest.raises(CannotProbeError, match=r"not enough memory for a message: CUDA .*out of memory") as found,
        memory_permitting("a message"),
    ):
        raise error
    assert "\n" not in str(found.value)


def test_other_failures_are_not_called_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"), memory_permitting("a message"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_what_all_ranks_of_a_host_need_together_has_to_be_there() -> None:
    refuse_more_than_is_free(2**20, sharers=2, device=CPU)
    with pytest.raises(
        CannotProbeError, match=r"64 ranks on this host need 1048576 MiB each; .* Choose a smaller size"
    ):
        refuse_more_than_is_free(2**40, sharers=64, device=CPU)


def test_gpus_say_themselves_how_much_they_have() -> None:
    refuse_more_than_is_free(2**60, sharers=8, device=torch.device("cuda"))


@pytest.fixture
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_NUMBERS_AT_ONCE", 251 * 2)


def message(member: int, numbers: int) -> torch.Tensor:
    tensor = torch.empty(numbers)
    KnownValues(CPU, numbers).fill(tensor, member)
    return tensor


@pytest.mark.parametrize("numbers", [1, 250, 251, 502, 503, 2000])
@pytest.mark.usefixtures("_short_parts")
def test_a_message_has_its_values_in_all_parts(numbers: int) -> None:
    assert message(5, numbers).tolist() == [i % 251 + 5 for i in range(numbers)]
    assert KnownValues(CPU, numbers).is_message(message(5, numbers), 5)


@pytest.mark.usefixtures("_short_parts")
def test_the_message_of_another_member_is_wrong() -> None:
    assert not KnownValues(CPU, 2000).is_message(message(5, 2000), 6)


@pytest.mark.parametrize("place", [0, 600, 1999])
@pytest.mark.usefixtures("_short_parts")
def test_one_wrong_number_is_found(place: int) -> None:
    one, both = message(1, 2000), message(0, 2000) + message(1, 2000)
    one[place] += 1
    both[place] += 1
    assert not KnownValues(CPU, 2000).is_message(one, 1)
    assert not KnownValues(CPU, 2000).is_sum(both, 2)


@pytest.mark.parametrize("begin", [0, 1, 667, 1400])
@pytest.mark.usefixtures("_short_parts")
def test_a_share_of_a_message_is_known_wherever_it_begins(begin: int) -> None:
    known, share = KnownValues(CPU, 2000), message(5, 2000)[begin : begin + 600]
    assert known.is_message(share, 5, begin)
    assert not known.is_message(share, 5, begin + 1)
    assert not known.is_message(share, 4, begin)


@pytest.mark.parametrize("begin", [0, 1, 667, 1400])
@pytest.mark.usefixtures("_short_parts")
def test_a_share_of_a_sum_is_known_wherever_it_begins(begin: int) -> None:
    total = torch.stack([message(member, 2000) for member in range(3)]).sum(dim=0)
    known = KnownValues(CPU, 2000)
    assert known.is_sum(total[begin : begin + 600], 3, begin)
    assert not known.is_sum(total[begin : begin + 600], 3, begin + 1)
    assert not known.is_sum(total[begin : begin + 600], 2, begin)


def test_sums_over_very_many_ranks_are_exact_in_fp32() -> None:
    assert 48_000 * (250 + 96) < 2**24


@pytest.mark.parametrize("probe", [Arm("send-recv-1mib", 8), Arm("send-recv-1mib", 24)])
def test_a_peer_is_mutual(probe: Arm) -> None:
    layout = Layout(3, 8)
    for turn in range(layout.turns(probe)):
        peers = {rank: peer_of(rank, probe, turn, layout) for rank in range(24)}
        assert all(peer is None or peers[peer] == rank for rank, peer in peers.items())
        assert any(peer is not None for peer in peers.values())


def test_only_send_recv_takes_turns() -> None:
    layout = Layout(3, 8)
    assert [layout.turns(probe) for probe in (Arm("matmul-fp32"), Arm("all-gather-1mib", 8))] == [1, 1]
    assert [layout.turns(Arm("send-recv-1mib", ranks)) for ranks in (2, 3, 8, 16, 24)] == [1, 3, 7, 1, 3]
