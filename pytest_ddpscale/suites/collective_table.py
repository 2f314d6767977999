"""Rows of a sweep as printed by nccl-tests (src/util.cu: writeResultHeader, writeBenchmarkLineBody, getFloatStr)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from pytest_ddpscale.plan.operation import size_text
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.suites.collective_rows import CollectiveRow
from pytest_ddpscale.util.printable import one_line

_LINE = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>6}"
_FIRST = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "±", "rounds")
_SECOND = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "", "")


def number_in_width(value: float, width: int) -> str:
    """A number with up to two decimals as they fit, else in scientific notation, as nccl-tests' getFloatStr writes."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.{1 if width >= 7 else 0}e}"


def cells(row: CollectiveRow) -> tuple[str, ...]:
    """Cells of one measured row, in the order of nccl-tests, then half the interval and the rounds."""
    time_us, algbw, busbw = row.time_us, row.algbw_gbps, row.busbw_gbps
    reach = row.relative_reach
    speed = [ABSENT] * 3
    if time_us is not None and algbw is not None and busbw is not None:
        speed = [number_in_width(time_us, 7), number_in_width(algbw, 6), number_in_width(busbw, 6)]
    return (
        str(row.size_bytes), str(row.count), "float", row.redop, str(row.root), *speed, str(row.wrong),
        ABSENT if reach is None else f"{100 * reach:.1f} %", str(row.rounds),
    )  # fmt: skip


def heading(rows: Sequence[CollectiveRow]) -> str:
    """Heading of one operation and world size: ``all-reduce over 8 ranks of each of 4 nodes, slowest node``."""
    first = rows[0]
    where = f"{first.operation.kind} over {first.probe.world_size} ranks"
    places = [row.place for row in rows if row.place is not None]
    if first.expected_places > 1:
        return f"{where} of each of {first.expected_places} nodes, slowest node"
    if places and places[0].kind == "node":
        return f"{where} of {one_line(places[0].host)}"
    return where


def grouped(rows: Iterable[CollectiveRow]) -> Iterator[list[CollectiveRow]]:
    """Rows of one operation and world size at a time."""
    for _, theirs in groupby(rows, lambda row: (row.probe.world_size, row.operation.kind)):
        yield list(theirs)


def not_measured(rows: Iterable[CollectiveRow]) -> list[str]:
    """A sentence for each operation with unmeasured sizes, and one for each row that some nodes did not measure."""
    all_rows, said = list(rows), list[str]()
    for theirs in grouped(row for row in all_rows if row.why_not):
        sizes = ", ".join(map(_size, theirs))
        what = f"{theirs[0].operation.kind} of {sizes} over {theirs[0].probe.world_size} ranks"
        said.append(f"{what} was not measured: {one_line(theirs[0].why_not)}")
    for row in all_rows:
        if not row.why_not and row.measured_places < row.expected_places:
            nodes = f"{row.measured_places} of {row.expected_places} nodes"
            what = f"{row.operation.kind} of {_size(row)} over {row.probe.world_size} ranks"
            said.append(f"{what} was measured on {nodes}")
    return said


def _size(row: CollectiveRow) -> str:
    return size_text(row.operation.message_bytes or 0)


def nccl_lines(rows: Sequence[CollectiveRow]) -> Iterator[str]:
    """The rows of a sweep as nccl-tests' text, with comments for everything that is not a measurement."""
    for theirs in grouped(rows):
        yield f"# {heading(theirs)}"
        yield "#" + _LINE.format(*_FIRST)[1:].rstrip()
        yield "#" + _LINE.format(*_SECOND)[1:].rstrip()
        yield from (_LINE.format(*cells(row)).rstrip() for row in theirs if row.busbw_gbps is not None)
        yield from (f"# {said}" for said in not_measured(theirs))
        yield "#"
