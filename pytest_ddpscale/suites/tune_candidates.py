"""Settings that tuning tries: of DDP, the trainer and the environment, each compared with the workload's own."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from pytest_ddpscale.families.image import MemoryFormat
from pytest_ddpscale.plan.arm import DATA_SETTINGS, USUAL, Arm, CommunicationHook, CompileMode, Variant
from pytest_ddpscale.plan.words import DeviceType, Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.nccl_variables import NCCL_VARIABLES

BATCH = "batch_size"
_VARIABLE = re.compile("[A-Z_][A-Z0-9_]*")
_WORDS: dict[str, Sequence[str]] = {
    "hook": get_args(CommunicationHook), "precision": get_args(Precision), "memory_format": get_args(MemoryFormat),
    "compile": get_args(CompileMode),
}  # fmt: skip
# Tried without --try: several values for each name.
USUAL_SETTINGS: dict[DeviceType, str] = {
    "cuda": "bucket_cap_mb=5,50,100 gradient_as_bucket_view=true static_graph=true broadcast_buffers=false "
    "high_priority_stream=true precision=fp32,fp16,bf16 memory_format=channels_last,contiguous fused_optimizer=true "
    "compile=default,reduce-overhead accumulation_steps=2,4 batch_size=half,double hook=fp16,bf16,powersgd "
    "uneven_share=0.1 NCCL_ALGO=Ring,Tree NCCL_BUFFSIZE=8388608 NCCL_MIN_NCHANNELS=16 TORCH_DIST_USE_NCCL2=0,1",
    "cpu": "bucket_cap_mb=5 gradient_as_bucket_view=true static_graph=true broadcast_buffers=false precision=bf16 "
    "memory_format=channels_last fused_optimizer=true accumulation_steps=4 batch_size=double",
}


@dataclass(frozen=True)
class Candidate:
    """One setting to try.

    Attributes:
        variant: settings of an arm.
        environment: variables by name, set for a gang of its own.
    """

    variant: Variant = USUAL
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """``bucket_cap_mb=5``, ``batch_size=64``, ``NCCL_ALGO=Ring``."""
        return ",".join(filter(None, [self.variant.name, *(f"{name}={value}" for name, value in self.environment)]))

    def arm(self, world_size: int, batch_size: int) -> Arm:
        """The arm that measures it, for a workload with this per-GPU batch."""
        of_pass = self.variant.batch_size or batch_size
        return Arm("ddp", world_size, of_pass * self.variant.accumulation_steps, variant=self.variant)

    @property
    def changes_batch(self) -> bool:
        """Whether a step trains another number of images than the workload's."""
        return self.variant.batch_size is not None or self.variant.accumulation_steps > 1

    @property
    def changes_training(self) -> str:
        """What the setting changes in training besides speed; empty if nothing."""
        if self.changes_batch:
            return "changes the global batch"
        if self.variant.hook is not None:
            return "changes training: gradients are sent with fewer bits"
        if self.variant.precision is not None:
            return "changes the precision"
        return "not a setting: shows the cost of uneven batches" if self.variant.uneven_share else ""

    def note(self, device_type: DeviceType) -> str:
        """A remark on its result; empty without one."""
        is_unread = device_type == "cpu" and any(name.startswith("NCCL_") for name, _ in self.environment)
        return "without effect: gloo reads no NCCL variable" if is_unread else self.changes_training


def candidates(text: str, workload: Workload) -> list[Candidate]:
    """Parse ``name=value,value name=value``; each candidate once, without the workload's own settings.

    Raises:
        ValueError: a word is not a setting; the message names it and what is expected.
    """
    found = [one for word in text.split() for one in _of_word(word, workload)]
    for one in found:
        one.arm(1, workload.batch_size)  # raises if it cannot be trained
    return [one for one in dict.fromkeys(found) if one != Candidate() and not _is_as_the_workload(one, workload)]


def _is_as_the_workload(one: Candidate, workload: Workload) -> bool:
    """Whether a candidate equals the workload's own settings."""
    of_workload = Variant(
        precision=workload.precision, memory_format=workload.family.memory_format, batch_size=workload.batch_size,
        compile="default" if workload.compile else "no",
    )  # fmt: skip
    names = ("precision", "memory_format", "batch_size", "compile")
    blank: dict[str, Any] = dict.fromkeys(names)
    others = replace(one.variant, **blank) != USUAL or bool(one.environment)
    return not others and all(getattr(one.variant, n) in (None, getattr(of_workload, n)) for n in names)


def _of_word(word: str, workload: Workload) -> Iterator[Candidate]:
    name, equals, values = word.partition("=")
    if not equals or not values:
        raise ValueError(f"name=value, not {word!r}")
    for value in values.split(","):
        if _VARIABLE.fullmatch(name):
            _refuse_unknown_to_nccl(name)
            yield Candidate(environment=((name, value),))
        elif name == BATCH:
            yield Candidate(Variant(batch_size=_batch(value, workload)))
        else:
            yield Candidate(Variant(**{name: _value(name, value)}))


def _refuse_unknown_to_nccl(name: str) -> None:
    if name.startswith("NCCL_") and name not in NCCL_VARIABLES:
        near = difflib.get_close_matches(name, NCCL_VARIABLES, 1)
        raise ValueError(f"variables that NCCL knows; it does not know {name}" + _meant(near))


def _meant(near: Sequence[str]) -> str:
    return f" (perhaps {' or '.join(near)})" if near else ""


def _batch(value: str, workload: Workload) -> int:
    relative = {"half": max(1, workload.batch_size // 2), "double": 2 * workload.batch_size}
    if value in relative:
        return relative[value]
    if not re.fullmatch("[0-9]{1,6}", value) or not int(value):
        raise ValueError(f"{BATCH} as a number, half or double, not {value!r}")
    return int(value)


def _value(name: str, value: str) -> Any:
    """Parse the value of a field of `Variant`. Raises ValueError."""
    usual = {one.name: one.default for one in fields(Variant) if one.name not in DATA_SETTINGS}
    if name not in usual:
        near = difflib.get_close_matches(name, usual, 1) or difflib.get_close_matches(name.upper(), NCCL_VARIABLES, 1)
        raise ValueError(f"settings such as {', '.join(usual)}; {name!r} is not one of them" + _meant(near))
    if name in _WORDS:
        if value not in _WORDS[name]:
            raise ValueError(f"{name} as one of {', '.join(_WORDS[name])}, not {value!r}")
        return value
    if isinstance(usual[name], bool):
        if value not in ("true", "false"):
            raise ValueError(f"{name} as true or false, not {value!r}")
        return value == "true"
    try:
        return int(value) if name == "accumulation_steps" else float(value)
    except ValueError:
        raise ValueError(f"{name} as a number, not {value!r}") from None


def exports(chosen: Sequence[Candidate]) -> str:
    """Environment variables as shell commands; empty without any.

    Args:
        chosen: largest gain first; the first wins if two are values of one variable.
    """
    variables = {name: value for c in reversed(chosen) for name, value in c.environment}
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
