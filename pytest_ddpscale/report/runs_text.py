"""The runs in a folder, the latest last, as `ddpscale runs` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_ddpscale.errors import BadInput, RunDirectoryError
from pytest_ddpscale.report.causes import headline
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.run.verdicts import read_judgement
from pytest_ddpscale.util.document import Column, Line, Table, text_lines
from pytest_ddpscale.util.printable import one_line

_COLUMNS = (
    Column("run"), Column("began, UTC"), Column("SKU"), Column("nodes", is_number=True), Column("GPUs", is_number=True),
    Column("outcome", may_shrink=True),
)  # fmt: skip


def run_lines(folder: Path, columns: int) -> list[str]:
    """What the latest run came to, and a table of the run directories directly in a folder; broken runs are marked.

    Lines have at most `columns` characters; outcomes in the table are shortened to that.

    Raises:
        RunDirectoryError: the folder does not exist or holds no run.
    """
    if not folder.is_dir():
        raise RunDirectoryError(str(folder), "does not exist", "a folder of run directories")
    # Without symbolic links such as `latest`, which would list a run twice.
    runs = [RunDirectory(path) for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    found = sorted(_row(run) for run in runs if run.run_json.exists())
    if not found:
        raise RunDirectoryError(
            str(folder), "holds no run", "a folder of run directories",
            "Name one, or measure: `pytest --gpu-sku=SKU` makes a run in ddpscale-runs.",
        )  # fmt: skip
    rows = [row for _, row in found]
    latest = folder / rows[-1][0]
    page = latest / "report.html"
    report = [f"report: {page}"] if page.is_file() else []
    answer = text_lines(Line(f"{latest}: {rows[-1][-1]}"), width=columns)
    return [*answer, *report, "", *text_lines(Table(_COLUMNS, rows), width=columns)]


def _row(run: RunDirectory) -> tuple[str, Sequence[str]]:
    """Start time, by which rows are sorted, and cells of a run."""
    try:
        record = run.read_run()
        began = f"{record.began:%Y-%m-%d %H:%M}"
        hosts = ranks_by_host(run.read_gangs()).values()
        counts = str(len(hosts) or ABSENT), str(sum(map(len, hosts)) or ABSENT)
        cells = (run.path.name, began, one_line(record.sku), *counts, _said(run, record))
        return record.began.isoformat(), cells
    except BadInput as error:
        return "", (run.path.name, ABSENT, ABSENT, ABSENT, ABSENT, f"broken: {one_line(str(error))}")


def _said(run: RunDirectory, record: RunRecord) -> str:
    if run.suite_json.exists():
        said = run.read_suite()
        return one_line(f"suite {said.get('suite')}: {said.get('headline') or record.status}")
    if run.verdicts_json.exists():
        return headline(read_judgement(run.verdicts_json))
    return f"{record.status}, not judged"
