"""The JSON report that PyTorch's DDP benchmark writes with ``--json``.

(github.com/pytorch/pytorch, benchmarks/distributed/ddp/benchmark.py.) An object with the configuration and
``benchmark_results``, which has the results of each model by size: ``ranks`` that trained, and ``measurements``, the
seconds of every step of the first rank, then of the second, and so on. The first result of a model is one GPU without
DDP. Our files have two more keys, which its diff.py ignores: ``gpus_per_machine`` and, in results, ``steps_per_round``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta, Struct

from pytest_ddpscale.errors import ResultFileError
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.util.printable import printable_json
from pytest_ddpscale.util.regular_file import read_regular

SOURCE = "pytorch/pytorch, benchmarks/distributed/ddp"
FILE_NAME = "pytorch-ddp.json"  # in the run directory of a suite
RESULTS = "benchmark_results"
GPUS_PER_MACHINE = "gpus_per_machine"
CONFIGURATION = ("pytorch_version", "cuda_version", "distributed_backend", "bucket_size")
_USUAL_GPUS_PER_MACHINE = 8  # fixed in PyTorch's benchmark

_Step = Annotated[float, Meta(ge=1e-9, le=1e7)]
_Rank = Annotated[int, Meta(ge=0, lt=10**6)]
_Whole = Annotated[int, Meta(ge=1, le=10**9)]
Said: TypeAlias = Annotated[str, Meta(max_length=200)] | int | float | bool | None


class DdpBenchmarkResult(Struct, frozen=True, omit_defaults=True):
    """One size.

    Attributes:
        ranks: ranks that trained together.
        measurements: seconds of each step, rank after rank.
        steps_per_round: steps of each rank in each round, in order; only in our files, where sizes take turns. None if
            all steps were made in one go.
    """

    ranks: Annotated[tuple[_Rank, ...], Meta(min_length=1)]
    measurements: Annotated[tuple[_Step, ...], Meta(min_length=1)]
    steps_per_round: Annotated[tuple[_Whole, ...], Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        if len(self.measurements) % len(self.ranks):
            raise ValueError(f"{len(self.measurements)} measurements of {len(self.ranks)} ranks; expected a multiple")
        if self.steps_per_round is not None and sum(self.steps_per_round) != self.steps:
            raise ValueError(f"steps_per_round adds up to {sum(self.steps_per_round)} of {self.steps} steps")

    @property
    def steps(self) -> int:
        """Number of steps of each rank."""
        return len(self.measurements) // len(self.ranks)

    @property
    def separate_s(self) -> FloatArray:
        """Mean step time of each round, or of each step if the file has no rounds: seconds, in order.

        The mean of all ranks: under DDP they wait for each other, so their times are one value, not many.
        """
        of_steps: FloatArray = np.asarray(self.measurements, np.float64).reshape(len(self.ranks), -1).mean(axis=0)
        if self.steps_per_round is None:
            return of_steps
        ends = np.cumsum(self.steps_per_round)[:-1]
        return np.array([float(one.mean()) for one in np.split(of_steps, ends)])


class DdpBenchmark(Struct, frozen=True):
    """One model; `result` by number of GPUs, one GPU without DDP first."""

    model: Annotated[str, Meta(pattern=r"^[\w.+/ -]{1,100}$")]
    batch_size: _Whole
    result: Annotated[tuple[DdpBenchmarkResult, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        first = len(self.result[0].ranks)
        if first != 1:
            raise ValueError(f"the first result of {self.model} is of {first} ranks; expected one GPU without DDP")

    @property
    def name(self) -> str:
        """The name in PyTorch's benchmark."""
        return f"{self.model} with batch size {self.batch_size}"

    @property
    def with_ddp(self) -> Mapping[int, DdpBenchmarkResult]:
        """Results under DDP by number of GPUs."""
        return {len(one.ranks): one for one in self.result[1:]}


class DdpBenchmarkFile(Struct, frozen=True):
    """A whole report; `configuration` has all other keys."""

    path: str
    configuration: Mapping[str, Said]
    benchmarks: tuple[DdpBenchmark, ...]

    def __post_init__(self) -> None:
        models = [one.model for one in self.benchmarks]
        double = [model for model in models if models.count(model) > 1]
        if double:
            raise ValueError(f"{double[0]} is there twice")
        _ = self.gpus_per_machine  # refused if it is none

    @property
    def gpus_per_machine(self) -> int:
        """From the configuration; 8 by default."""
        said = self.configuration.get(GPUS_PER_MACHINE, _USUAL_GPUS_PER_MACHINE)
        if type(said) is not int or said < 1:
            raise ValueError(f"{GPUS_PER_MACHINE} is {said!r}; expected a whole number")
        return said


def size_name(gpus: int, gpus_per_machine: int) -> str:
    """``1M/4G`` for four GPUs of one machine, ``2M/8G`` for sixteen of two."""
    machines = max(1, gpus // gpus_per_machine)
    return f"{machines}M/{gpus // machines}G"


def read_ddp_benchmark(path: Path) -> DdpBenchmarkFile:
    """Read a report. Raises ResultFileError if it is invalid or contradicts itself."""
    try:
        return ddp_benchmark_of(printable_json(parse_strict_json(read_regular(path))), str(path))
    except (OSError, ValueError) as error:  # a msgspec.ValidationError is a ValueError, and so is broken UTF-8
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ResultFileError(
            str(path), f"cannot be read as a report ({why})", f"a file written by {SOURCE}/benchmark.py --json",
            "Name such a file, or the run directory of `ddpscale suite pytorch-ddp`.",
        ) from None  # fmt: skip


def ddp_benchmark_of(said: Any, path: str) -> DdpBenchmarkFile:
    """The report in parsed JSON. Raises ValueError."""
    if not isinstance(said, dict):
        raise ValueError(f"it holds {type(said).__name__}, not an object")  # noqa: TRY004 (same error for all files)
    missing = [key for key in (*CONFIGURATION, RESULTS) if key not in said]
    if missing:
        raise ValueError(f"it has no {missing[0]!r}")
    configuration = {key: value for key, value in said.items() if key != RESULTS}
    benchmarks = msgspec.convert(said[RESULTS], Annotated[tuple[DdpBenchmark, ...], Meta(min_length=1)])
    return DdpBenchmarkFile(path, msgspec.convert(configuration, dict[str, Said]), benchmarks)


def ddp_benchmark_json(configuration: Mapping[str, Said], benchmarks: Sequence[DdpBenchmark]) -> dict[str, Any]:
    """The content of a report, in JSON types."""
    return {**configuration, RESULTS: [msgspec.to_builtins(one) for one in benchmarks]}


def report_at(path: Path) -> Path | None:
    """The path of the report: the file itself, or the one in a suite's run directory; None if there is none."""
    if path.is_dir():
        inside = path / FILE_NAME
        return inside if inside.is_file() else None
    return path if path.is_file() else None
