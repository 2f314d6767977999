"""The part of a running measurement's page that is written again every few seconds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.progress import Progress
from pytest_ddpscale.report.text import count_text
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord, Notice
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.telemetry import TelemetryBlock
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util import document
from pytest_ddpscale.util.arrays import FloatArray, IntArray
from pytest_ddpscale.util.document import Bar, Line, bullets, table

REFRESH_S = 10
LIVE = "live"  # the hole in the page
_MOST_RANKS = 16  # rows; of more ranks the slowest and the hottest
_GIB = 2**30
_OF_TELEMETRY = ("power_w", "temperature_c")


class LiveProgress:
    """What the page shows: share done, time left, each rank's latest block, and what has ended.

    Args:
        progress: of the same records.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._gang: GangRecord | None = None
        self._block: Block | None = None
        self._telemetry: dict[str, FloatArray] = {}

    def hear(self, record: AnyRecord | Notice) -> None:
        """Process one record; what is shown is computed later, by `section`."""
        self._progress(record)
        if isinstance(record, GangRecord):
            self._gang, self._block = record, None
            self._telemetry = {name: np.full(record.world_size, np.nan) for name in _OF_TELEMETRY}
        elif isinstance(record, TelemetryBlock):
            for name, column in self._telemetry.items():
                column[list(record.ranks)] = getattr(record, name)
        elif isinstance(record, Block) and (self._block is None or len(record.ranks) >= len(self._block.ranks)):
            self._block = record  # the latest of those of the most ranks, so that ranks compare

    def section(self, written_at: str) -> list[document.Block]:
        """What fills the hole, with the date and time of writing."""
        per_cent, left = self._progress.left.per_cent, self._progress.left.text()
        how_far = (f"{per_cent} % done, {left} ", Bar(per_cent), " ") if left and per_cent is not None else ()
        written = (
            f"Written at {written_at}; this page reloads every {REFRESH_S} s. If the time stops changing, the run was "
            "killed: judge it, or continue it with --ddp-resume."
        )
        return [
            Line((*how_far, self._progress.doing), "live"), *self._ranks(),
            bullets(self._progress.lasting), Line(written),
        ]  # fmt: skip

    def _ranks(self) -> Iterator[document.Block]:
        """A table with a row for each rank of the latest block."""
        block, gang = self._block, self._gang
        if block is None or gang is None:
            return
        ranks = block.each("ranks")
        study = self._progress.plan.study(block.study)
        per_second = block.per_second if study is not None else np.full(len(ranks), np.nan)
        power_w, temperature_c = (self._telemetry[name][ranks] for name in _OF_TELEMETRY)
        columns = (
            (per_second, 1), (block.each("peak_memory_bytes") / _GIB, 1), (100 * block.each("utilization"), 0),
            (power_w, 0), (temperature_c, 0),
        )  # fmt: skip
        shown = _slowest_and_hottest(per_second, temperature_c)
        rows = []
        for row in shown.tolist():
            place = gang.ranks[int(ranks[row])].place
            of_row = [(float(values[row]), decimals) for values, decimals in columns]
            numbers = (ABSENT if np.isnan(value) else f"{value:.{decimals}f}" for value, decimals in of_row)
            rows.append([str(ranks[row]), place.host, place.number, *numbers])
        unit = study.workload.family.unit if study is not None else self._progress.plan.unit or "samples"
        titles = ("Rank", "Node", "Device", f"{unit}/s", "Memory, GiB", "Utilization, %", "Power, W", "Temperature, °C")
        of = "" if len(rows) == len(ranks) else f"; the slowest and the hottest of {count_text(len(ranks), 'rank')}"
        yield Line(f"Latest block of {block.study}: {block.arm}, round {block.round + 1}{of}")
        yield table(titles, rows, of_numbers=True)


def _slowest_and_hottest(per_second: FloatArray, temperature_c: FloatArray) -> IntArray:
    """Rows to show, in order."""
    if len(per_second) <= _MOST_RANKS:
        return np.arange(len(per_second))
    slowest, hottest = np.argsort(per_second, kind="stable"), np.argsort(-temperature_c, kind="stable")  # NaN last
    first = slowest[: _MOST_RANKS // 2]
    return np.sort(np.concatenate([first, hottest[~np.isin(hottest, first)][: _MOST_RANKS // 2]]))


def failed_so_far(judgement: Judgement) -> set[str]:
    """Ids of the requirements that fail; those that are not measured yet do not."""
    blocking = filter(judgement.is_blocked_by, judgement.verdicts)
    return {one.id for one in blocking if one.outcome in ("failed", "error")}
