"""Probe of matrix products: floating-point operations per second of a device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from pytest_ddpscale.plan.operation import MatmulPrecision
from pytest_ddpscale.worker.precision import compute_fp32_in_full
from pytest_ddpscale.worker.probes.work import CannotProbeError, memory_permitting, refuse_more_than_is_free

if TYPE_CHECKING:
    from pytest_ddpscale.worker.device import Device

# Rows and columns, unless the probe's name has them. On a GPU large enough to be compute-bound and to fill all
# multiprocessors almost evenly: 16384 is 8192 tiles of 128 x 256, 62.06 waves on 132 of them. Four such matrices take
# 2 GiB. A CPU without matrix units takes tens of milliseconds.
SIZES: dict[str, dict[MatmulPrecision, int]] = {
    "cuda": {"fp32": 8192, "fp16": 16384, "bf16": 16384, "fp8": 16384},
    "cpu": {"fp32": 1024, "fp16": 512, "bf16": 512},
}
_OPERANDS: dict[MatmulPrecision, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
_FP8_SINCE = (8, 9)  # Ada; Hopper is 9.0
# Nonzero elements in each row of the left operand for exact products, at least; fewer than twice as many if it does not
# divide the rows. Sums of so many ±1, and partial sums, are integers that bf16 (8 bits of mantissa) and Hopper's fp8
# accumulators of 14 bits hold exactly.
_EXACT_TERMS = 128
_LARGEST_FACTOR = 2**20  # times 2^16 columns and 255 terms is below 2^44: exact in fp64
_BYTES_AT_MOST = 20  # per element: two operands and three products in fp32
_ELEMENTS_AT_ONCE = 2**24
# Tolerance between products whose terms were added in another order; the largest of 2^32 elements is 7 sigma.
_ROUNDINGS = 16


class Matmul:
    """A square matrix product C = A·B, with B stored by columns like the weights of a linear layer.

    2·n³ floating-point operations: the convention of mamf-finder and of the vendors' figures. Operands are new random
    normal numbers, because power, and with it the clock, depends on how many bits change: zeros are multiplied faster.

    Attributes:
        product: of the last call.

    Args:
        precision: of the operands. fp8 is e4m3, with a bf16 result. fp32 is not TF32.
        size: rows and columns of each matrix; a multiple of 16.
    """

    def __init__(self, precision: MatmulPrecision, device: torch.device, size: int) -> None:
        compute_fp32_in_full()
        dtype = _OPERANDS[precision]
        self.work = 2.0 * size**3
        self._left = torch.randn(size, size, device=device).to(dtype)
        self._right = torch.randn(size, size, device=device).to(dtype).t()
        self._scale = torch.ones((), device=device) if precision == "fp8" else None
        result = torch.bfloat16 if precision == "fp8" else dtype
        self.product = torch.empty(size, size, dtype=result, device=device)

    def __call__(self) -> None:
        """Multiply once."""
        if self._scale is None:
            torch.mm(self._left, self._right, out=self.product)
        else:  # like fp8 training: scales of 1, fast accumulation
            torch._scaled_mm(
                self._left, self._right, scale_a=self._scale, scale_b=self._scale, out_dtype=self.product.dtype,
                use_fast_accum=True, out=self.product,
            )  # fmt: skip

    def is_correct(self) -> bool:
        """Whether the product can be repeated, and a product of other operands is exact.

        The first finds errors under load, the second permanent errors.
        """
        return self._is_repeated() and self._is_exact()

    def _is_repeated(self) -> bool:
        """Whether the same kernel gives the last product again.

        On one stream, cuBLAS guarantees the same bits for the same operands. If a kernel does not, two further products
        differ from each other as well, and only by rounding; if those two are equal, the first one was wrong.
        """
        timed = self.product
        self.product = torch.empty_like(timed)
        self()
        if torch.equal(timed, self.product):
            return True
        again, self.product = self.product, torch.empty_like(timed)
        self()
        if torch.equal(again, self.product):
            return False
        # Elements are sums of `size` products of normal numbers, so about sqrt(size) large.
        most = _ROUNDINGS * torch.finfo(timed.dtype).eps * math.sqrt(len(timed))
        return _differ_by(timed, again) <= most and _differ_by(again, self.product) <= most

    def _is_exact(self) -> bool:
        """Freivalds' check: C·x = A·(B·x) for random x, here with integers that every precision holds exactly.

        Elements that are not integers are refused first, because fp64 would not see 2^-126 in a sum of 2^40.
        """
        size = len(self.product)
        _sparse_signs(self._left)
        _signs(self._right)
        self.product.fill_(float("nan"))
        self()
        factors = torch.randint(1, _LARGEST_FACTOR, (size,), device=self.product.device).double()
        expected = _times(self._left, _times(self._right, factors))
        return _is_whole(self.product) and torch.equal(_times(self.product, factors), expected)


def open_matmul(precision: MatmulPrecision, device: Device, size: int | None = None, sharers: int = 1) -> Matmul:
    """The probe on a device, run once to allocate what it needs.

    Args:
        size: rows and columns; None for the default of the device's type.
        sharers: ranks on this host that do the same at the same time.

    Raises:
        CannotProbeError: the device or this build of torch does not support the precision, or memory is too small.
    """
    where = device.torch_device
    usual = SIZES[where.type].get(precision)
    if usual is None:
        needed = f"{precision} matrix products need a GPU with {precision} units"
        raise CannotProbeError(f"{needed}; this device is a {where.type.upper()}")
    if where.type == "cuda":
        _refuse_what_gpu_lacks(precision, device)
    size = size or usual
    refuse_more_than_is_free(_BYTES_AT_MOST * size**2, sharers, where)
    with memory_permitting(f"matrices of {size} x {size}"):
        matmul = Matmul(precision, where, size)
        try:
            matmul()
        except RuntimeError as error:
            if precision != "fp8" or isinstance(error, torch.OutOfMemoryError):
                raise
            # cuBLASLt reports this only when called: older builds support fp8 on fewer GPUs.
            raise CannotProbeError(
                f"this torch build ({torch.__version__}) cannot multiply fp8 here: {error}"
            ) from error
    return matmul


def _refuse_what_gpu_lacks(precision: MatmulPrecision, device: Device) -> None:
    try:
        device.check("bf16" if precision == "bf16" else "fp32")
    except RuntimeError as error:
        raise CannotProbeError(str(error)) from error
    capability = torch.cuda.get_device_capability(device.torch_device)
    if precision == "fp8" and capability < _FP8_SINCE:
        raise CannotProbeError(f"{device.name} (compute capability {capability[0]}.{capability[1]}) has no fp8")


def _signs(matrix: torch.Tensor) -> None:
    """Fill a matrix with random ±1."""
    for part in matrix.split(_rows_at_once(matrix)):
        part.copy_(_random_signs(part))


def _sparse_signs(matrix: torch.Tensor) -> None:
    """Fill a square matrix with `_EXACT_TERMS` random ±1 in each row, in other columns than its neighbours."""
    stride = max(1, len(matrix) // _EXACT_TERMS)
    matrix.zero_()
    for offset in range(stride):
        part = matrix[offset::stride, -offset % stride :: stride]
        part.copy_(_random_signs(part))


def _random_signs(like: torch.Tensor) -> torch.Tensor:
    return 2.0 * torch.randint(0, 2, like.shape, device=like.device) - 1


def _times(matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """The product in fp64, a few rows at a time to save memory."""
    return torch.cat([part.float().double() @ vector for part in matrix.split(_rows_at_once(matrix))])


def _is_whole(matrix: torch.Tensor) -> bool:
    return all(torch.equal(part, part.round()) for part in matrix.split(_rows_at_once(matrix)))


def _differ_by(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of two elements; infinite if one is not finite."""
    rows = _rows_at_once(one)
    most = [float((a.float() - b.float()).abs().max()) for a, b in zip(one.split(rows), other.split(rows), strict=True)]
    return max(most) if all(map(math.isfinite, most)) else math.inf


def _rows_at_once(matrix: torch.Tensor) -> int:
    return max(1, _ELEMENTS_AT_ONCE // matrix.shape[1])
