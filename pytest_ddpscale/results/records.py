"""The records of measurements.jsonl: one JSON object a line, told apart by ``kind``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# In place of a round's number, of what is asked before a study begins.
BEFORE_ROUNDS = -1
LOST = "lost"  # kind of the record of nodes that fell silent, or that Slurm gave up
# A thousand times what any GPU trains of the smallest images: more is a broken clock, and would overflow in ratios.
MOST_IMG_PER_S = 1e9


@dataclass(frozen=True)
class Measurement:
    """What one rank saw in one timed block: one arm in one round.

    Attributes:
        study: id of the study, ``weak/resnet152-fp16``.
        arm: name of the arm: ``alone``, ``each@8``, ``no_sync@8`` or ``ddp@8``.
        round: counted from 0.
        rank: global rank in the gang.
        local_rank: rank on its host: its GPU's place among those visible there.
        host: host name.
        device: GPU UUID as NVML has it (``GPU-…``), or ``cpu``.
        batch_size: per-GPU batch, in images.
        steps: optimizer steps in the block.
        block_s: duration of the block, in seconds.
        started_unix_s: when the block began, seconds since 1970 UTC.
        step_s: duration of each step, in seconds; empty in imported results that kept none.
        step_stdev_s: sample standard deviation of the step time, in seconds; None with one step.
        utilization: share of the block the device was busy, 0 … 1 (CPU: process CPU time per thread);
            None where it could not be read.
        energy_j: that the GPU took in the block; None where it could not be read, and on a CPU.
        peak_memory_bytes: most memory held (GPU: allocated by torch in this block; CPU: the
            process's largest resident set so far).
        skipped_steps: optimizer steps that fp16's loss scaler left out in this block.
        parameters_checksum: of the bits of all parameters after the block, hexadecimal; under ``ddp``
            only, where all ranks of the arm have to agree. None where it was not taken.
        single_sample: the one long sample of an imported result: its spread is that of its steps.
    """

    study: str
    arm: str
    round: int
    rank: int
    local_rank: int
    host: str
    device: str
    batch_size: int
    steps: int
    block_s: float
    started_unix_s: float
    step_s: tuple[float, ...] = ()
    step_stdev_s: float | None = None
    utilization: float | None = None
    peak_memory_bytes: int | None = None
    skipped_steps: int = 0
    parameters_checksum: str | None = None
    single_sample: bool = False
    energy_j: float | None = None

    def __post_init__(self) -> None:
        if self.step_stdev_s is not None and not self.step_stdev_s >= 0:
            raise ValueError(f"step_stdev_s={self.step_stdev_s}; expected none or at least 0")
        if self.energy_j is not None and not (math.isfinite(self.energy_j) and self.energy_j >= 0):
            raise ValueError(f"energy_j={self.energy_j}; expected none or a finite number from 0 up")
        if self.steps < 1 or not (math.isfinite(self.block_s) and self.block_s > 0):
            raise ValueError(f"steps={self.steps}, block_s={self.block_s}; expected both positive and finite")
        if min(self.round, self.rank, self.local_rank) < 0 or not 0 <= self.skipped_steps <= self.steps:
            raise ValueError(
                f"round={self.round}, rank={self.rank}, local_rank={self.local_rank}, "
                f"skipped_steps={self.skipped_steps} of {self.steps}; expected none below 0, nor more skipped than made"
            )
        if not self.throughput_img_per_s <= MOST_IMG_PER_S:
            raise ValueError(
                f"batch_size={self.batch_size}, steps={self.steps}, block_s={self.block_s} are "
                f"{self.throughput_img_per_s:g} img/s; expected at most {MOST_IMG_PER_S:g}"
            )

    @property
    def throughput_img_per_s(self) -> float:
        """Images this rank trained per second."""
        return self.batch_size * self.steps / self.block_s

    def as_json(self) -> dict[str, Any]:
        """The measurement as JSON types, with its ``kind``."""
        return {"kind": "measurement", **asdict(self)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Measurement:
        """Read what `as_json` wrote.

        Raises:
            TypeError: a key is missing or unknown, or its value of another type.
            ValueError: a number is impossible.
        """
        fields = {key: value for key, value in data.items() if key != "kind"}
        fields["step_s"] = tuple(fields.get("step_s", ()))
        measurement = Measurement(**fields)
        refuse_other_types(measurement)
        return measurement


_NUMBER = (int, float)
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": _NUMBER,
}


def _fits(annotation: str, value: Any) -> bool:
    """Whether a value read from JSON is of a field's type: True is no number, and 1 is a float."""
    if annotation.endswith(" | None"):
        return value is None or _fits(annotation.removesuffix(" | None"), value)
    if annotation == "tuple[float, ...]":
        return all(type(number) in _NUMBER for number in value)
    if annotation.startswith("tuple["):
        return isinstance(value, tuple)  # of records, each of which was looked at by itself
    if annotation.startswith("Mapping["):
        inner = annotation.removeprefix("Mapping[str, ").removesuffix("]")
        return isinstance(value, dict) and all(isinstance(key, str) and _fits(inner, one) for key, one in value.items())
    if isinstance(value, bool):
        return annotation == "bool"
    if annotation not in _TYPES:
        return type(value).__name__ == annotation
    return isinstance(value, _TYPES[annotation])


def refuse_other_types(record: DataclassInstance) -> None:
    """Check the fields of a record that was read from JSON against their annotations.

    Args:
        record: a dataclass of texts, numbers, truths, tuples, mappings from text and dataclasses, or None of these.

    Raises:
        TypeError: a field is of another type.
    """
    wrong = [f.name for f in dataclass_fields(record) if not _fits(str(f.type), getattr(record, f.name))]
    if wrong:
        raise TypeError(f"{wrong[0]} is {getattr(record, wrong[0])!r}")


@dataclass(frozen=True)
class StudyEnd:
    """How a study ended.

    Attributes:
        study: its id.
        reason: ``decided`` (further rounds would change nothing), ``rounds`` (the limit is reached),
            ``budget`` (time ran out), ``interrupted`` (something else than the study ended it) or ``error``.
        message: for ``error``: which rank and host, in which arm, round and phase, and what it said; for
            ``interrupted``: by what, as ``the job reached its time limit``.
    """

    study: str
    reason: str
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        """The record as JSON types, with its ``kind``."""
        return {"kind": "study_end", **asdict(self)}


@dataclass(frozen=True)
class SeededStep:
    """What one rank computed, by itself, of a step that is the same on all ranks.

    Attributes:
        study: id of the study.
        rank: global rank in the gang.
        local_rank: rank on its host.
        host: host name.
        device: GPU UUID, or ``cpu``.
        checksum: of the gradients' bits, hexadecimal.
        repeats: whether the rank got the same bits when it computed the step again.
    """

    study: str
    rank: int
    local_rank: int
    host: str
    device: str
    checksum: str
    repeats: bool = True


def seeded_steps_of(records: Sequence[dict[str, Any]]) -> dict[str, list[SeededStep]]:
    """The seeded steps among records, by study; a study's last one counts for each rank.

    Raises:
        TypeError: a record lacks a key or has an unknown one, or its value is of another type.
    """
    found: dict[str, dict[int, SeededStep]] = {}
    for record in records:
        if record.get("kind") == "seeded_step":
            step = SeededStep(**{key: value for key, value in record.items() if key != "kind"})
            refuse_other_types(step)
            found.setdefault(step.study, {})[step.rank] = step
    return {study: [steps[rank] for rank in sorted(steps)] for study, steps in found.items()}


def flops_of(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Floating-point operations per image of forward and backward pass, by study, where they were counted.

    Raises:
        KeyError: a record lacks a key.
        ValueError: a number is impossible.
    """
    counted = [record for record in records if record.get("kind") == "workload_flops"]
    found = {str(record["study"]): float(record["flops_per_image"]) for record in counted}
    if any(not (math.isfinite(flops) and flops > 0) for flops in found.values()):
        raise ValueError(f"flops_per_image {found}; expected positive and finite numbers")
    return found


def timed_arms_of(records: Sequence[dict[str, Any]]) -> dict[str, dict[int, frozenset[str]]]:
    """Names of the arms that each finished round timed, by study and number of the round.

    Raises:
        KeyError: a record lacks a key.
        TypeError: its arms are no list.
    """
    found: dict[str, dict[int, frozenset[str]]] = {}
    for record in records:
        if record.get("kind") == "round_end":
            if not isinstance(record["arms"], list):
                raise TypeError(f"arms of a round_end are {record['arms']!r}; expected a list of names")
            arms = frozenset(map(str, record["arms"]))
            found.setdefault(str(record["study"]), {})[int(record["round"])] = arms
    return found


def strict_json(data: Any) -> str:
    """One line of JSON that every parser accepts.

    Raises:
        ValueError: the data holds NaN or an infinity, which JSON has no word for.
    """
    return json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))


def parse_strict_json(text: str) -> Any:
    """Parse JSON. Raises ValueError for anything malformed, NaN and Infinity included."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            raise ValueError(f"{digits} is out of range")
        return number

    def moderate(digits: str) -> int:
        if len(digits) > 40:
            raise ValueError(f"{digits[:20]}… is out of range")
        return int(digits)

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite, parse_int=moderate)
    except RecursionError:
        raise ValueError("nested too deeply") from None
