"""Ranks that are slow only in rounds in which their GPU reports throttling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.device_flags import flags
from pytest_ddpscale.judge.rounds import ArmRounds
from pytest_ddpscale.judge.stragglers import Straggler
from pytest_ddpscale.run.telemetry import TelemetryColumns

_MOSTLY, _HARDLY = 0.75, 0.25  # share of throttled rounds among the slow ones, and among the others


def with_held_down(
    stragglers: Sequence[Straggler], measured: ArmRounds, telemetry: TelemetryColumns
) -> list[Straggler]:
    """Mark stragglers that were throttled just when they were slow; impossible to tell for one slow throughout.

    Args:
        stragglers: found in `measured`.
        measured: rounds in which every rank computes alone.
        telemetry: of the run.
    """
    return [
        one if one.is_slow_throughout else replace(one, is_held_down=_is_held_down(one, measured, telemetry))
        for one in stragglers
    ]


def _is_held_down(straggler: Straggler, measured: ArmRounds, telemetry: TelemetryColumns) -> bool:
    told = telemetry.of_arm(measured.measured.study, measured.measured.arm, [straggler.host])
    told = told.of(told.rank == straggler.rank)
    was_slow, is_throttled = np.isin(told.round, straggler.slow_rounds), flags(told)["throttled"]
    if not was_slow.any() or was_slow.all():
        return False
    return bool(is_throttled[was_slow].mean() >= _MOSTLY and is_throttled[~was_slow].mean() <= _HARDLY)
