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
from pytest_ddpscale.run.strict_json import Positive, parse_strict_json
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.printable import printable_json
from pytest_ddpscale.util.regular_file import read_regular

SOURCE = "pytorch/pytorch, benchmarks/distributed/ddp"
FILE_NAME = "pytorch-ddp.json"  # in the run directory of a suite
RESULTS = "benchmark_results"
GPUS_PER_MACHINE = "gpus_per_machine"
CONFIGURATION = ("pytorch_version", "cuda_version", "distributed_backend", "bucket_size")
_USUAL_GPUS_PER_MACHINE = 8  # fixed in PyTorch's benchmark
_AT_LEAST_ONE = Meta(min_length=1)
_Step = Annotated[float, Meta(ge=1e-9, le=1e7)]
Said: TypeAlias = str | int | float | bool | None


class DdpBenchmarkResult(Struct, frozen=True, omit_defaults=True):
    """One size.

    Attributes:
        ranks: ranks that trained together.
        measurements: seconds of each step, rank after rank.
        steps_per_round: steps of each rank in each round, in order; only in our files, where sizes take turns. None if
            all steps were made in one go.
    """

    ranks: Annotated[tuple[int, ...], _AT_LEAST_ONE]
    measurements: Annotated[tuple[_Step, ...], _AT_LEAST_ONE]
    steps_per_round: Annotated[tuple[Positive, ...], _AT_LEAST_ONE] | None = None

    def __post_init__(self) -> None:
        if len(self.measurements) % len(self.ranks):
            raise ValueError(f"{len(self.measurements)} measurements of {len(self.ranks)} ranks; expected a multiple")

    @property
    def separate_s(self) -> FloatArray:
        """Mean step time of each round, or of each step if the file has no rounds: seconds, in order.

        The mean of all ranks: under DDP they wait for each other, so their times are one value, not many.
        """
        of_steps: FloatArray = np.reshape(self.measurements, (len(self.ranks), -1)).mean(axis=0)
        if self.steps_per_round is None:
            return of_steps
        return np.array([one.mean() for one in np.split(of_steps, np.cumsum(self.steps_per_round)[:-1])])


class DdpBenchmark(Struct, frozen=True):
    """One model; `result` by number of GPUs, one GPU without DDP first."""

    model: str
    batch_size: Positive
    result: Annotated[tuple[DdpBenchmarkResult, ...], _AT_LEAST_ONE]

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
    benchmarks: Annotated[tuple[DdpBenchmark, ...], _AT_LEAST_ONE]
    gpus_per_machine: Positive = _USUAL_GPUS_PER_MACHINE

    def __post_init__(self) -> None:
        models = [one.model for one in self.benchmarks]
        if len(set(models)) < len(models):
            raise ValueError(f"a model is there twice: {', '.join(models)}")


def size_name(gpus: int, gpus_per_machine: int) -> str:
    """``1M/4G`` for four GPUs of one machine, ``2M/8G`` for sixteen of two."""
    machines = max(1, gpus // gpus_per_machine)
    return f"{machines}M/{gpus // machines}G"


def read_ddp_benchmark(path: Path) -> DdpBenchmarkFile:
    """Read a report. Raises ResultFileError if it is invalid or contradicts itself."""
    try:
        return ddp_benchmark_of(printable_json(parse_strict_json(read_regular(path))), str(path))
    except (OSError, ValueError) as error:  # a msgspec.ValidationError is a ValueError
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ResultFileError(
            str(path), f"cannot be read as a report ({why})", f"a file written by {SOURCE}/benchmark.py --json",
            "Name such a file, or the run directory of `ddpscale suite pytorch-ddp`.",
        ) from None  # fmt: skip


def ddp_benchmark_of(said: Any, path: str) -> DdpBenchmarkFile:
    """The report in parsed JSON. Raises ValueError."""
    keys = msgspec.convert(said, dict[str, Any])
    missing = [key for key in (*CONFIGURATION, RESULTS) if key not in keys]
    if missing:
        raise ValueError(f"it has no {missing[0]!r}")
    told = {"path": path, "benchmarks": keys.pop(RESULTS), "configuration": keys}
    if GPUS_PER_MACHINE in keys:
        told[GPUS_PER_MACHINE] = keys[GPUS_PER_MACHINE]
    return msgspec.convert(told, DdpBenchmarkFile)


def ddp_benchmark_json(configuration: Mapping[str, Said], benchmarks: Sequence[DdpBenchmark]) -> dict[str, Any]:
    """The content of a report, in JSON types."""
    return {**configuration, RESULTS: [msgspec.to_builtins(one) for one in benchmarks]}


def report_at(path: Path) -> Path | None:
    """The path of the report: the file itself, or the one in a suite's run directory; None if there is none."""
    found = path / FILE_NAME if path.is_dir() else path
    return found if found.is_file() else None
