"""Mistakes planted in the code of real ranks, which gloo lets pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddpscale.worker.arms import StudyArms
from tests.nccl_rules.checking import DESTRUCTION, MESSAGES, NEVER_DESTROYED, TIMEOUT, USE_AFTER_DESTROY

Close = Callable[[StudyArms], None]


def _closing(close: Callable[[StudyArms, Close], None]) -> None:
    """Have a study's arms closed in another way, which is given the right one."""
    right = StudyArms.close
    StudyArms.close = lambda self: close(self, right)  # type: ignore[method-assign]


def destroys_in_another_order(rank: int) -> None:
    """As the order of a set differs from process to process."""

    def close(self: StudyArms, right: Close) -> None:
        if rank % 2:
            self._groups = dict(reversed(self._groups.items()))
        right(self)

    _closing(close)


def forgets_a_group(rank: int) -> None:
    """So that its communicator holds memory in all studies that follow."""

    def close(self: StudyArms, right: Close) -> None:
        self._groups.popitem()
        right(self)

    _closing(close)


def uses_a_destroyed_group(rank: int) -> None:
    """As an arm would that outlived its study."""

    def close(self: StudyArms, right: Close) -> None:
        *_, group = self._groups.values()  # which all ranks are in
        right(self)
        with suppress(RuntimeError):  # which is what gloo says
            group.allreduce([torch.zeros(1)])

    _closing(close)


def sends_what_nobody_receives(rank: int) -> None:
    """As one of a pair would that counts the turns wrongly."""

    def close(self: StudyArms, right: Close) -> None:
        if rank == 0:
            with suppress(RuntimeError):  # the other rank may be gone already
                next(iter(self._groups.values())).send([torch.zeros(1)], 1, 0)
        right(self)

    _closing(close)


def forgets_the_timeout(rank: int) -> None:
    """So that the backend's own counts."""
    new_group = dist.new_group

    def without(timeout: timedelta, **others: Any) -> Any:
        return new_group(**others)

    dist.new_group = without  # type: ignore[assignment]


DEFECTS = {
    DESTRUCTION: destroys_in_another_order,
    NEVER_DESTROYED: forgets_a_group,
    USE_AFTER_DESTROY: uses_a_destroyed_group,
    MESSAGES: sends_what_nobody_receives,
    TIMEOUT: forgets_the_timeout,
}
