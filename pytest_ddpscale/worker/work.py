"""The work of probes: matrix products, copies, and exchanges between ranks, to repeat and then to check."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import psutil
import torch
import torch.distributed as dist

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import KINDS, MatmulPrecision
from pytest_ddpscale.worker.device import Device
from pytest_ddpscale.worker.training import compute_fp32_in_full

_CPU_OUT_OF_MEMORY = "can't allocate memory"
_CUDA_OUT_OF_MEMORY = "out of memory"  # of pinned host memory, which is no torch.OutOfMemoryError


class CannotProbeError(Exception):
    """This rank cannot run a probe; this is recorded and is not a failure of the gang."""


class Work(Protocol):
    """One iteration of a probe, ready to be repeated. All ranks of a group have one each.

    Attributes:
        work: of one iteration: floating-point operations, or bytes.
    """

    work: float

    def __call__(self) -> None:
        """Run one iteration. On a GPU it is only queued."""

    def is_correct(self) -> bool:
        """Whether the result is right. This is the last call, because it may overwrite the operands.

        If ranks communicate, all of them call it at the same time.
        """


@contextmanager
def memory_permitting(purpose: str) -> Iterator[None]:
    """Raise CannotProbeError if memory does not suffice."""
    try:
        yield
    except RuntimeError as error:
        is_memory = isinstance(error, torch.OutOfMemoryError)
        if is_memory or _CPU_OUT_OF_MEMORY in str(error) or _CUDA_OUT_OF_MEMORY in str(error):
            reason, *_ = str(error).splitlines()
            raise CannotProbeError(f"not enough memory for {purpose}: {reason}") from error
        raise


def refuse_more_than_is_free(needed_bytes: int, sharers: int, device: torch.device) -> None:
    """Refuse allocations that would get ranks killed, because Linux overcommits host memory.

    Args:
        sharers: number of ranks on this host, which all need the same amount.

    Raises:
        CannotProbeError: the host has too little memory.
    """
    free_bytes = psutil.virtual_memory().available
    if device.type == "cpu" and needed_bytes * sharers > free_bytes:
        raise CannotProbeError(
            f"{sharers} ranks on this host need {needed_bytes / 2**20:.0f} MiB each; "
            f"{free_bytes / 2**20:.0f} MiB are available. Choose a smaller size"
        )


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


class Copy:
    """A copy of random bytes from one tensor to another.

    Within a device's memory each byte counts twice, read and written, like in STREAM's copy and nvbandwidth; between
    device and host once. Host memory is pinned. On a CPU both tensors are in host memory.

    Attributes:
        destination: the copy, as 64-bit integers.

    Args:
        size_bytes: a multiple of 8.
    """

    def __init__(self, kind: str, device: torch.device, size_bytes: int) -> None:
        numbers = size_bytes // 8
        self.work = float(size_bytes) * KINDS[kind].counts
        self._source = _numbers(numbers, device, on_host=kind == "host-to-device").random_()
        self.destination = _numbers(numbers, device, on_host=kind == "device-to-host").zero_()

    def __call__(self) -> None:
        """Copy once."""
        self.destination.copy_(self._source, non_blocking=True)

    def is_correct(self) -> bool:
        """Whether source and destination are equal."""
        return torch.equal(self.destination.to(self._source.device), self._source)


def buffer_bytes(kind: str, device: torch.device) -> int:
    """Bytes that are copied at once."""
    return KINDS[kind].buffer_bytes["cpu" if device.type == "cpu" else "cuda"]


def open_copy(kind: str, device: torch.device) -> Copy:
    """The probe on a device. Raises CannotProbeError if there is too little memory."""
    size_bytes = buffer_bytes(kind, device)
    with memory_permitting(f"copies of {size_bytes >> 20} MiB"):
        return Copy(kind, device, size_bytes)


def _numbers(count: int, device: torch.device, *, on_host: bool) -> torch.Tensor:
    if on_host and device.type == "cuda":
        return torch.empty(count, dtype=torch.int64, pin_memory=True)
    return torch.empty(count, dtype=torch.int64, device=device)


# Primes, so no two parts of a message begin with the same value. Sums over 48,000 ranks stay below 2^24: integers
# that fp32 adds exactly in any order.
_PERIOD = 251
_RANKS_APART = 97
_NUMBERS_AT_ONCE = _PERIOD * 2**16


class KnownValues:
    """Messages in which element i of member m of a group is i mod 251 + m mod 97.

    Long tensors are processed in parts of 63 MiB, to need little additional memory.

    Args:
        numbers: length of the longest tensor.
    """

    def __init__(self, device: torch.device, numbers: int) -> None:
        length = min(numbers, _NUMBERS_AT_ONCE) + _PERIOD
        period = torch.arange(_PERIOD, dtype=torch.float32, device=device)
        self._pattern = period.repeat(-(-length // _PERIOD))

    def fill(self, tensor: torch.Tensor, member: int) -> None:
        """Write a member's message."""
        for first, part in _parts(tensor):
            torch.add(self._from(first, len(part)), member % _RANKS_APART, out=part)

    def is_message(self, tensor: torch.Tensor, member: int, begin: int = 0) -> bool:
        """Whether a tensor is that member's message, from its element `begin` on."""
        return all(
            torch.equal(part, self._from(begin + first, len(part)) + member % _RANKS_APART)
            for first, part in _parts(tensor)
        )

    def is_sum(self, tensor: torch.Tensor, members: int, begin: int = 0) -> bool:
        """Whether a tensor is the sum of all members' messages, from their element `begin` on."""
        constant = sum(member % _RANKS_APART for member in range(members))
        return all(
            torch.equal(part, members * self._from(begin + first, len(part)) + constant)
            for first, part in _parts(tensor)
        )

    def _from(self, index: int, length: int) -> torch.Tensor:
        return self._pattern[index % _PERIOD :][:length]


def _parts(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Start index and content of each part of a tensor."""
    for first in range(0, len(tensor), _NUMBERS_AT_ONCE):
        yield first, tensor[first : first + _NUMBERS_AT_ONCE]


# Names from torch 2.14 on, where the older names warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_FP32_BYTES = 4
# Messages in memory at once: input and output; gloo's reduce-scatter all-reduces a copy.
_MESSAGES_HELD = 4
_IN_PLACE = ("all-reduce", "broadcast", "reduce")
_OF_ONE_PART = ("reduce-scatter", "all-to-all")  # each member receives another part of the messages


class Exchange:
    """An exchange of fp32 messages among the members of a group, as a probe; does not communicate yet.

    The message is rounded down to a whole number of fp32 values for each rank, like in nccl-tests.

    Attributes:
        work: bytes, counted like nccl-tests: of the whole buffer, gathered or to be scattered.
        received: output of this rank; for sums in place also its input.

    Args:
        peer: the other rank, of the gang, of send-recv, which is batched to use the group's existing communicator:
            without a batch, torch creates one for each pair.

    Raises:
        CannotProbeError: the message has less than one number for each rank.
    """

    def __init__(
        self, kind: str, message_bytes: int, group: dist.ProcessGroup, device: torch.device, peer: int | None = None
    ) -> None:
        self._kind, self._member, self._size = kind, group.rank(), group.size()
        self._run: Callable[[], object]
        root = dist.get_global_rank(group, 0)
        shares = self._size if peer is None else 1
        self._share = message_bytes // (_FP32_BYTES * shares)
        if self._share < 1:
            raise CannotProbeError(f"a message of {message_bytes} bytes has no number for each of {shares} ranks")

        def buffer(*, of_one: bool) -> torch.Tensor:
            return torch.zeros(self._share * (1 if of_one else shares), device=device)

        sent = buffer(of_one=kind == "all-gather")
        received = sent if kind in _IN_PLACE else buffer(of_one=kind == "reduce-scatter")
        self.work = float(max(sent.nbytes, received.nbytes))
        self.received = received
        # Only the root of a broadcast fills a message; on other ranks a right value was received.
        self._sent = sent[:0] if kind == "broadcast" and self._member else sent
        self._known = KnownValues(device, max(len(sent), len(received)))
        if peer is not None:
            self._operations = [
                dist.P2POp(dist.isend, sent, peer, group),
                dist.P2POp(dist.irecv, received, peer, group),
            ]
            self._senders = [dist.get_group_rank(group, peer)]
            self._run = self._send_receive
            return
        self._senders = [0] if kind == "broadcast" else list(range(self._size))
        self._run = {
            "all-reduce": partial(dist.all_reduce, received, group=group),
            "all-gather": partial(_all_gather, received, sent, group=group),
            "reduce-scatter": partial(_reduce_scatter, received, sent, group=group),
            "broadcast": partial(dist.broadcast, received, root, group=group),
            "reduce": partial(dist.reduce, received, root, group=group),
            "all-to-all": partial(dist.all_to_all_single, received, sent, group=group),
        }[kind]

    def __call__(self) -> None:
        """Communicate once."""
        self._run()

    def is_correct(self) -> bool:
        """Whether known values give the right result in one more, untimed iteration, like nccl-tests -c.

        The timed values cannot be checked: a sum in place is infinite after a hundred iterations.
        """
        self.received.fill_(float("nan"))
        self._known.fill(self._sent, self._member)
        self()
        return self._is_expected()

    def _is_expected(self) -> bool:
        """Whether the output is right for the known messages."""
        known, begin = self._known, self._member * self._share if self._kind in _OF_ONE_PART else 0
        if "reduce" in self._kind:
            # Only the root checks the sum of a reduce, because the buffers of other ranks are undefined afterwards.
            is_undefined = self._kind == "reduce" and self._member != 0
            return is_undefined or known.is_sum(self.received, self._size, begin)
        parts = self.received.split(len(self.received) // len(self._senders))
        return all(known.is_message(part, sender, begin) for part, sender in zip(parts, self._senders, strict=True))

    def _send_receive(self) -> None:
        for request in dist.batch_isend_irecv(self._operations):
            request.wait()


def peer_of(rank: int, probe: Arm, turn: int, layout: Layout) -> int | None:
    """The peer of a rank in a turn of send-recv; None if it sits out."""
    pair = next((pair for pair in layout.groups(probe, turn) if rank in pair), None)
    return None if pair is None else pair[1] if pair[0] == rank else pair[0]


def open_work(probe: Arm, turn: int, device: Device, group: dist.ProcessGroup | None, layout: Layout) -> Work | None:
    """The work that this rank repeats in one turn of a probe; None if it sits out. Does not communicate yet.

    Raises:
        CannotProbeError: the rank cannot do it; the message says why.
    """
    operation, where = probe.operation, device.torch_device
    if group is None:
        if operation.precision is not None:
            return open_matmul(operation.precision, device, operation.rows, layout.ranks_per_node)
        return open_copy(operation.kind, where)
    size = operation.message_bytes
    assert size is not None  # all probes that communicate have a message
    refuse_more_than_is_free(_MESSAGES_HELD * size, layout.ranks_per_node, where)
    peer = None
    if operation.kind == "send-recv":
        peer = peer_of(dist.get_rank(), probe, turn, layout)
        if peer is None:
            return None
    with memory_permitting(f"messages of {size} bytes"):
        return Exchange(operation.kind, size, group, where, peer)
