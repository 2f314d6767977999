"""`ddpscale thresholds show` as text for a terminal of 100 columns, and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.thresholds.changes import bound_text
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.thresholds.showing import (
    Asked,
    AskedRow,
    ListedSku,
    is_of_checks,
    listed_skus,
    margin_text,
    ranks_text,
    source_text,
    subject_text,
    unit_of,
)
from pytest_ddpscale.thresholds.site_file import site_example, site_row
from pytest_ddpscale.util.packaged import THRESHOLDS, packaged

WIDTH = 100
LONGEST_SUBJECT = 30
_SHORT_DIGEST = 12
_ABSENT = "–"
_PROVISIONAL = (
    "Provisional: no value is published for this SKU. The bound is an estimate and cannot accept a cluster alone."
)


def asked_lines(asked: Asked, verbose: bool = False) -> Iterator[str]:
    """Requirements of a SKU, grouped by metric; with `verbose` the full source of each row, and its line."""
    sku = asked.sku
    also = f" (also {', '.join(sku.aliases)})" if sku.aliases else ""
    yield from _wrapped(f"{asked.name}{also}: {sku.description}")
    yield from file_lines(asked.file)
    yield from _wrapped(_counts(asked))
    if not asked.rows:
        known = dict.fromkeys(one.metric for one in sku.requirements)
        yield from _wrapped(f"No requirement on {', '.join(asked.metrics)}. Metrics with one: {', '.join(known)}.")
        return
    for metric in asked.metrics:
        rows = asked.rows_of(metric)
        if rows:
            yield ""
            yield from _wrapped(_heading(metric), "", "  ")
            yield from _table(rows, verbose)
    if asked.removed:
        yield ""
        yield "Not required here, but in the file that this one extends:"
        yield from (f"  {one}: {bound_text(one)}" for one in asked.removed)
    if verbose:
        yield from _workload_lines(asked)
    else:
        yield ""
        yield "-v adds the full source and the line of each row; see also --format=markdown or json."
    yield from _ending(asked)


def listed_lines(file: ThresholdsFile) -> Iterator[str]:
    """The SKUs of a file, each in one line."""
    yield from file_lines(file)
    yield ""
    skus = listed_skus(file)
    rows = [(*_listed_cells(one), one.description) for one in skus]
    yield from _columns([("SKU", "also", "published", "provisional", "checks", "description"), *rows])
    yield ""
    yield "Requirements of one: ddpscale thresholds show --gpu-sku NAME"


def asked_markdown(asked: Asked) -> Iterator[str]:
    """`asked_lines` as Markdown, with the full source and the line of each row."""
    sku = asked.sku
    yield f"# Requirements of {asked.name}"
    yield ""
    yield f"{_escaped(sku.description)}. {_counts(asked)}"
    yield ""
    yield from _markdown_files(asked.file)
    for metric in asked.metrics:
        rows = asked.rows_of(metric)
        if rows:
            yield from ("", f"## {METRICS[metric].title}", "", _escaped(_heading(metric)), "")
            yield from _markdown_table(_MARKDOWN_HEAD, [_markdown_cells(row) for row in rows])
    if asked.removed:
        yield from ("", "## Not required here", "")
        yield from (f"- {_escaped(f'{one}: {bound_text(one)}')} (`{one.where}`)" for one in asked.removed)


def listed_markdown(file: ThresholdsFile) -> Iterator[str]:
    """The SKUs of a file as a Markdown table."""
    yield from _markdown_files(file)
    yield ""
    head = ("SKU", "also", "published", "provisional", "checks", "description")
    yield from _markdown_table(head, [(*_listed_cells(one), one.description) for one in listed_skus(file)])


def file_lines(file: ThresholdsFile) -> Iterator[str]:
    """The file and those that it extends, with short digests."""
    yield f"thresholds: {file.path} (sha256 {file.sha256[:_SHORT_DIGEST]}…)"
    yield from (f"  extending {path} (sha256 {digest[:_SHORT_DIGEST]}…)" for path, digest in file.extended)


def _counts(asked: Asked) -> str:
    numbers = [row.requirement for row in asked.rows if not row.requirement.check]
    provisional = sum(one.provisional for one in numbers)
    rejecting = sum(row.requirement.severity == "fail" for row in asked.rows)
    changed = sum(row.change is not None for row in asked.rows) + len(asked.removed)
    told = f"{len(numbers)} requirements, {provisional} of them provisional"
    if len(asked.rows) > len(numbers):
        told += f", and {len(asked.rows) - len(numbers)} node checks"
    told += f"; {rejecting} reject, {len(asked.rows) - rejecting} only warn"
    return f"{told}. This file changes {changed} (marked *)." if changed else f"{told}."


def _heading(metric: str) -> str:
    definition = METRICS[metric]
    if is_of_checks([metric]):
        return f"{metric}: {definition.meaning}"
    better = "less" if definition.upper_bound else "more"
    return f"{metric} ({unit_of(definition)}, {better} is better): {definition.meaning}"


def _table(rows: Sequence[AskedRow], verbose: bool) -> Iterator[str]:
    of_checks = all(row.requirement.check for row in rows)
    cells_of: Callable[[AskedRow], tuple[str, ...]] = _check_cells if of_checks else _number_cells
    head = (" ", "check", "") if of_checks else (" ", "of", "GPUs", "published", "margin", "bound", "")
    body = [cells_of(row) for row in rows]
    if verbose:
        title, *lines = _columns([head, *body])
        yield title
        for row, line, following in zip(rows, lines, [*rows[1:], None], strict=True):
            yield line
            if following is None or not _have_one_source(row, following):
                yield from _details(row)
        return
    told = [(*cells, _reason(row.requirement)) for cells, row in zip(body, rows, strict=True)]
    title, *lines = _columns([(*head, "source"), *told])
    yield title
    for row, line in zip(rows, lines, strict=True):
        yield line
        if row.change is not None:
            yield f"      {_was(row)}"


def _have_one_source(one: AskedRow, other: AskedRow) -> bool:
    """Whether two rows have the same details, so that they are printed once."""
    if one.change or other.change:
        return False
    first, second = one.requirement, other.requirement
    return (first.where, source_text(first)) == (second.where, source_text(second))


def _reason(one: Requirement) -> str:
    """Its source, without ``provisional: ``, which has its own column."""
    return source_text(one).removeprefix("provisional: ")


def _was(row: AskedRow) -> str:
    return f"was: {bound_text(row.change.was if row.change else None)}"


def _check_cells(row: AskedRow) -> tuple[str, ...]:
    return (_mark(row), row.requirement.check, row.requirement.severity)


def _number_cells(row: AskedRow) -> tuple[str, ...]:
    one = row.requirement
    measured = one.source.measured
    published = f"{measured:g}" if measured is not None else "provisional" if one.provisional else _ABSENT
    sign = "≤" if one.definition.upper_bound else "≥"
    subject = _shortened(subject_text(one), LONGEST_SUBJECT)
    margin = margin_text(one) or (_ABSENT if measured is None else "stated")
    return (_mark(row), subject, ranks_text(one), published, margin, f"{sign} {one.bound:g}", one.severity)


def _mark(row: AskedRow) -> str:
    return "*" if row.change else " "


def _details(row: AskedRow) -> Iterator[str]:
    one = row.requirement
    yield f"      {one.where}"
    if row.change is not None:
        yield f"      {_was(row)}"
    yield from _wrapped(source_text(one), "      ", "      ")


def _workload_lines(asked: Asked) -> Iterator[str]:
    used = dict.fromkeys(row.requirement.workload for row in asked.rows if row.requirement.workload)
    if used:
        yield ""
        yield "Workloads:"
        yield from (f"  {_workload_text(asked.sku.workloads[name])}" for name in used)


def _workload_text(one: Workload) -> str:
    shared = f", {one.global_batch_size} in all for strong scaling" if one.global_batch_size else ""
    family = one.family
    what = f"{family.trained}, {one.precision}, {one.batch_size} {family.samples} of {family.sample_text} per GPU"
    return f"{one.name}: {what}{shared}"


def _ending(asked: Asked) -> Iterator[str]:
    if any(row.requirement.provisional and not row.requirement.check for row in asked.rows):
        yield from _wrapped(_PROVISIONAL)
    example = _example(asked)
    if example is None:
        return
    if asked.file.path != packaged(THRESHOLDS):
        yield f"To change one, write its row under `skus: {asked.name}: requirements:` of {asked.file.path}:"
        yield f"  - {site_row(example)}"
    else:
        yield f"To change one: ddpscale init --gpu-sku {asked.name} DIR, and in DIR/thresholds.yaml:"
        yield from (f"  {line}" for line in site_example(asked.name, example))
    yield "Then: ddpscale thresholds check FILE"


def _example(asked: Asked) -> Requirement | None:
    """The row that a site would most likely replace: one without a published value."""
    rows = (row.requirement for row in asked.rows if not row.requirement.check)
    numbers = [one for one in rows if one.definition.only_bound is None and one.versus is None]
    return next((one for one in numbers if one.provisional), numbers[0] if numbers else None)


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of at most WIDTH columns; the last cell is shortened."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield f"{line}  {_shortened(row[-1], WIDTH - len(line) - 2)}".rstrip()


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 1, 0)].rstrip()}…"


def _wrapped(text: str, first: str = "", further: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=further, break_on_hyphens=False)


def _listed_cells(one: ListedSku) -> tuple[str, ...]:
    return (one.name, ", ".join(one.aliases), str(one.published), str(one.provisional), str(one.checks))


_MARKDOWN_HEAD = ("of", "GPUs", "published", "margin", "bound", "severity", "source", "row")


def _markdown_cells(row: AskedRow) -> tuple[str, ...]:
    one = row.requirement
    if one.check:
        cells: tuple[str, ...] = (one.check, "", "", "", "pass", one.severity)
    else:
        cells = _number_cells(row)[1:]
        cells = (subject_text(one), *cells[1:])
    was = f" ({_was(row)})" if row.change else ""
    return (*cells, f"{source_text(one)}{was}", f"`{one.where}`")


def _markdown_files(file: ThresholdsFile) -> Iterator[str]:
    yield f"- thresholds: `{file.path}`, sha256 `{file.sha256}`"
    yield from (f"- extending `{path}`, sha256 `{digest}`" for path, digest in file.extended)


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    for character in ("\\", "|", "*", "_", "<"):
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
