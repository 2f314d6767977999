"""Result files of willgpaik/pytorch-ddp-scaling-benchmark, read with suspicion.

What is read is what that tool's ``benchmark_ddp.py`` writes: one JSON object per run of one world
size, with means and standard deviations per rank. Everything is checked here, so that what comes
out can be written into a run directory without further ado.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from pytest_ddpscale.errors import ResultFileError
from pytest_ddpscale.plan.study import Scaling
from pytest_ddpscale.plan.workload import Precision
from pytest_ddpscale.results.strict_json import parse_strict_json

TOOL = "willgpaik/pytorch-ddp-scaling-benchmark"

# The tool divides torch.cuda.max_memory_allocated() by 1024**3 and calls the quotient "gb".
BYTES_PER_TOOL_GB = 2**30
# No other kind of file has both; a file with neither is not a broken result but no result.
_SIGNATURE_KEYS = ("scaling_mode", "per_rank")
_ANSI_CODE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_MODEL_NAME = re.compile(r"[A-Za-z0-9_]+")
# Beyond any machine there is, and short of what makes arithmetic overflow.
_SMALLEST_POSITIVE_NUMBER = 1e-9
_LARGEST_NUMBER = 1e15


@dataclass(frozen=True)
class RankResult:
    """What one rank of one result file saw.

    Attributes:
        rank: global rank.
        mean_step_s: mean duration of a step, in seconds.
        step_stdev_s: sample standard deviation of the step time, in seconds; None with one step.
        steps: number of steps timed.
        peak_memory_bytes: most memory torch had allocated.
        utilization: mean of nvidia-smi's utilization.gpu, 0 … 1; None where it was not sampled.
    """

    rank: int
    mean_step_s: float
    step_stdev_s: float | None
    steps: int
    peak_memory_bytes: int
    utilization: float | None


@dataclass(frozen=True)
class ResultFile:
    """One result file: one workload at one world size.

    Attributes:
        path: the file.
        scaling: ``weak`` or ``strong``.
        world_size: ranks that trained together.
        nodes: hosts they were spread over.
        model: torchvision's name of the model.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        batch_size: per-GPU batch, in images.
        global_batch_size: batch of all ranks together, in images.
        image_size: height and width of an image, in pixels.
        channels_last: whether the memory format was NHWC (the tool never uses it for ViT).
        compile: whether torch.compile was applied.
        warmup_s: untimed training that was aimed at, in seconds.
        block_s: timed training that was aimed at, in seconds.
        device_name: as torch names rank 0's device.
        torch_version: for example ``2.12.0+cu130``.
        cuda_version: for example ``13.0``; None where torch was built without CUDA.
        topology: ``nvidia-smi topo --matrix`` of rank 0's host, without terminal codes; None if unknown.
        ranks: what each rank saw, by rank.
    """

    path: Path
    scaling: Scaling
    world_size: int
    nodes: int
    model: str
    precision: Precision
    batch_size: int
    global_batch_size: int
    image_size: int
    channels_last: bool
    compile: bool
    warmup_s: float
    block_s: float
    device_name: str
    torch_version: str
    cuda_version: str | None
    topology: str | None
    ranks: tuple[RankResult, ...]


def read_result_files(directory: Path) -> list[ResultFile]:
    """Read every ``*.json`` in a directory and below it.

    Returns:
        The results, in the order of their paths. At least one.

    Raises:
        ResultFileError: there is none, or one of them is not a sound result of the tool.
    """
    if not directory.is_dir():
        raise ResultFileError(
            str(directory), "is no directory", f"a directory of result files of {TOOL}",
            "Name the directory they are in.",
        )  # fmt: skip
    paths = sorted(path for path in directory.rglob("*.json") if path.is_file())
    if not paths:
        raise ResultFileError(
            str(directory), "holds no *.json file", f"result files of {TOOL}",
            "Name the directory that its --output-json wrote to.",
        )  # fmt: skip
    return [read_result_file(path) for path in paths]


def read_result_file(path: Path) -> ResultFile:
    """Read one result file.

    Raises:
        ResultFileError: it cannot be read, is not strict JSON, is no result of the tool, lacks a key,
            or holds a value that cannot be true. The message names the file and the key.
    """
    fields = _Fields(path, _load(path))
    world_size = fields.integer("world_size", at_least=1)
    result = ResultFile(
        path=path,
        scaling=cast(Scaling, fields.choice("scaling_mode", get_args(Scaling))),
        world_size=world_size,
        nodes=fields.integer("nodes", at_least=1),
        model=fields.model("model"),
        precision=cast(Precision, fields.choice("precision", get_args(Precision))),
        batch_size=fields.integer("batch_size_per_gpu", at_least=1),
        global_batch_size=fields.integer("global_batch_size", at_least=1),
        image_size=fields.integer("image_size", at_least=1),
        channels_last=fields.flag("channels_last"),
        compile=fields.flag("compile"),
        warmup_s=fields.number("warmup_sec_target", at_least=0),
        block_s=fields.positive("bench_sec_target"),
        device_name=fields.text("device_name"),
        torch_version=fields.text("torch_version"),
        cuda_version=fields.optional_text("cuda_version"),
        topology=_without_ansi_codes(fields.optional_text("nccl_topology")),
        ranks=tuple(_rank_results(fields, world_size)),
    )
    if result.global_batch_size != result.batch_size * world_size:
        raise fields.wrong("global_batch_size", f"batch_size_per_gpu x world_size, {result.batch_size * world_size}")
    return result


def _load(path: Path) -> dict[str, Any]:
    try:
        data = parse_strict_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultFileError(
            str(path), f"cannot be read ({error.strerror})", "a readable file", "Correct its permissions."
        ) from None
    # RecursionError: brackets nested by the thousand.
    except (ValueError, RecursionError) as error:
        raise ResultFileError(
            str(path), f"is not strict JSON ({error})", f"a result file of {TOOL}", _repair(path)
        ) from None
    if not isinstance(data, dict) or not any(key in data for key in _SIGNATURE_KEYS):
        raise ResultFileError(
            str(path), f"is JSON, but no result of {TOOL}: it has neither {' nor '.join(_SIGNATURE_KEYS)}",
            "only result files of that tool", f"Move {path.name} elsewhere, and import again.",
        )  # fmt: skip
    return data


def _rank_results(fields: _Fields, world_size: int) -> Iterator[RankResult]:
    sections = fields.sections("per_rank")
    if len(sections) != world_size:
        raise ResultFileError(
            str(fields.path), f"per_rank has {len(sections)} entries", f"one for each of {world_size} ranks",
            _repair(fields.path),
        )  # fmt: skip
    for number, section in enumerate(sections):
        if section.integer("rank", at_least=0) != number:
            raise section.wrong("rank", f"{number}: ranks come in order")
        yield _rank_result(section)


def _rank_result(fields: _Fields) -> RankResult:
    steps = fields.integer("n_steps", at_least=1)
    stdev_s = fields.number("stdev_step_sec", at_least=0)
    return RankResult(
        rank=fields.integer("rank", at_least=0),
        mean_step_s=fields.positive("mean_step_sec"),
        step_stdev_s=stdev_s if steps > 1 else None,
        steps=steps,
        peak_memory_bytes=round(fields.positive("peak_mem_gb") * BYTES_PER_TOOL_GB),
        utilization=_utilization(fields),
    )


def _utilization(fields: _Fields) -> float | None:
    """Null stands where nvidia-smi was missing, switched off or had no answer."""
    sampling = fields.optional_section("gpu_sampling")
    if sampling is None:
        return None
    activity = sampling.section("gpu_activity_pct")
    if activity.value("mean") is None:
        return None
    return activity.number("mean", at_least=0, at_most=100) / 100


def _without_ansi_codes(text: str | None) -> str | None:
    return None if text is None else _ANSI_CODE.sub("", text)


def _repair(path: Path) -> str:
    return f"Restore {path.name} from a copy, measure it again, or leave it out."


class _Fields:
    """One JSON object of a result file, whose values are checked as they are taken.

    Every method takes a key and raises ResultFileError, naming the file and the key, if the key is
    missing or its value is not of the kind asked for.
    """

    def __init__(self, path: Path, data: dict[str, Any], prefix: str = "") -> None:
        self.path = path
        self._data = data
        self._prefix = prefix

    def wrong(self, key: str, expected: str) -> ResultFileError:
        """The complaint that the value of `key` is not what was expected."""
        shown = repr(self._data[key])
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return ResultFileError(str(self.path), f"{self._prefix}{key} is {shown}", expected, _repair(self.path))

    def value(self, key: str) -> Any:
        if key not in self._data:
            raise ResultFileError(
                str(self.path), f"key {self._prefix}{key} is missing", f"every key that {TOOL} writes",
                _repair(self.path),
            )  # fmt: skip
        return self._data[key]

    def number(self, key: str, at_least: float, at_most: float = _LARGEST_NUMBER) -> float:
        value = self.value(key)
        if not _is_number(value) or not at_least <= value <= at_most:
            limit = f"at least {at_least:g}" if at_most == _LARGEST_NUMBER else f"from {at_least:g} to {at_most:g}"
            raise self.wrong(key, f"a number, {limit}")
        return float(value)

    def positive(self, key: str) -> float:
        value = self.value(key)
        if not _is_number(value) or not _SMALLEST_POSITIVE_NUMBER <= value <= _LARGEST_NUMBER:
            raise self.wrong(key, "a positive number")
        return float(value)

    def integer(self, key: str, at_least: int) -> int:
        value = self.value(key)
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= _LARGEST_NUMBER:
            raise self.wrong(key, f"a whole number, at least {at_least}")
        return value

    def flag(self, key: str) -> bool:
        value = self.value(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str) or not value.strip() or not _is_unicode(value):
            raise self.wrong(key, "a text")
        return value

    def optional_text(self, key: str) -> str | None:
        return None if self.value(key) is None else self.text(key)

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.value(key)
        if value not in choices:
            raise self.wrong(key, " or ".join(choices))
        return str(value)

    def model(self, key: str) -> str:
        # The name becomes part of study ids and so of file names: no slashes, no spaces.
        value = self.text(key)
        if not _MODEL_NAME.fullmatch(value):
            raise self.wrong(key, "the name of a torchvision model")
        return value

    def section(self, key: str) -> _Fields:
        value = self.value(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return _Fields(self.path, value, f"{self._prefix}{key}.")

    def optional_section(self, key: str) -> _Fields | None:
        return None if self.value(key) is None else self.section(key)

    def sections(self, key: str) -> list[_Fields]:
        value = self.value(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, "a list of objects")
        return [_Fields(self.path, item, f"{self._prefix}{key}[{i}].") for i, item in enumerate(value)]


def _is_number(value: Any) -> bool:
    """Whether it is a finite JSON number: 1e999 parses as infinity, and True counts as 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _is_unicode(text: str) -> bool:
    """False for half a surrogate pair, which JSON can escape and UTF-8 cannot write."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
