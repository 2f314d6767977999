"""Hooks that time the forward passes of a model in one block: each rank's own pace, under DDP too.

All steps under DDP take as long as those of the slowest rank, because gradients are averaged. The forward pass of the
module that DDP wraps waits for nobody: DDP broadcasts buffers before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from pytest_ddpscale.run.block import FORWARD_S


@dataclass(frozen=True)
class Forwards:
    """The forward passes to time in a block.

    Attributes:
        model: the module that DDP wraps, or that is trained without DDP. It is not compiled, because a hook that is
            added after torch.compile never fires.
        passes: forward passes of each step.
    """

    model: nn.Module
    passes: int


class ForwardHooks:
    """Calls `mark` as each forward pass begins and ends while it is entered; no hook remains, also after an exception.

    Hooks that stayed would be copied with the model.

    Args:
        forwards: the passes; None for none.
        steps: of the block.
        mark: called twice for each expected pass, no more.
    """

    def __init__(self, forwards: Forwards | None, steps: int, mark: Callable[[], None]) -> None:
        self.expected = 0 if forwards is None else forwards.passes * steps
        self._model = None if forwards is None else forwards.model
        self._mark = mark
        self._begun = self._ended = 0
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> ForwardHooks:
        """Set the hooks."""
        if self._model is not None:
            self._handles.append(self._model.register_forward_pre_hook(self._begin))
            self._handles.append(self._model.register_forward_hook(self._end))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _begin(self, model: nn.Module, inputs: Any) -> None:
        self._begun += 1
        if self._begun <= self.expected:
            self._mark()

    def _end(self, model: nn.Module, inputs: Any, outputs: Any) -> None:
        self._ended += 1
        if self._ended <= self.expected:
            self._mark()

    def reading(self, passes_s: Iterable[float]) -> dict[str, Any]:
        """The field `forward_s` of a `Timing`, or `unread` with the reason if the hooks fired another number of times.

        Args:
            passes_s: seconds of each pass, read only if all are there.
        """
        if self._model is None:
            return {}
        if self._begun == self._ended == self.expected:
            return {FORWARD_S: math.fsum(passes_s)}
        found = f"hooks on the model saw {self._begun} forward passes begin and {self._ended} end"
        return {"unread": {FORWARD_S: f"{found}; expected {self.expected}"}}
