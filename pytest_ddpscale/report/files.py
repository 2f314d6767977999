"""Every file of a report, written into the run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as replaced
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_ddpscale.errors import WritingError
from pytest_ddpscale.report.live_progress import LIVE
from pytest_ddpscale.report.next_steps import cause_records
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import JUDGED_NOTE, OPERATOR, RunRecord, ThresholdsUsed
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util.atomic_writing import write_atomically

if TYPE_CHECKING:
    from pytest_ddpscale.report.charts import Picture


def write_reports(
    run: RunDirectory, judgement: Judgement, record: RunRecord, evidence: Evidence, *, is_final: bool = True
) -> list[str]:
    """Write verdicts.json first, then the reports made from it, the run's run.json and its evidence.

    While measuring goes on (`is_final` false), plots, machine-readable reports and the page are left out; the page is
    then written separately.

    Returns:
        One sentence for each file that could not be written.
    """
    from pytest_ddpscale.report.markdown import render_markdown

    record, kept = _as_judged(record, judgement), _with_kept_traces(run, evidence)
    plots, drawn = list[Path](), list["Picture"]()
    recorded = replaced(judgement, causes=cause_records(judgement, record))
    problems = [_attempt("verdicts.json", lambda: run.write_json(run.verdicts_json, recorded))]
    if is_final:
        from pytest_ddpscale.report import csv_tables, junit
        from pytest_ddpscale.report.figures import figures, write_pngs
        from pytest_ddpscale.report.prometheus import render_prometheus

        views: dict[str, Callable[[], str]] = {
            "junit.xml": lambda: junit.render_junit(judgement),
            "values.csv": lambda: csv_tables.render_values(judgement, evidence),
            "culprits.csv": lambda: csv_tables.render_culprits(judgement),
            "metrics.prom": lambda: render_prometheus(judgement, record, evidence.gangs),
        }
        for name, render in views.items():
            problems.append(_attempt(name, partial(_write, run.path / name, render)))

        def draw() -> None:
            drawn.extend(figures(kept, judgement, record))
            plots.extend(write_pngs(drawn, run.plots))

        problems.append(_attempt("plots", draw))
    names = [f"plots/{plot.name}" for plot in plots]
    markdown = partial(render_markdown, judgement, record, names, kept)
    problems.append(_attempt("report.md", partial(_write, run.path / "report.md", markdown)))
    if is_final:
        problems.append(write_page(run, judgement, record, kept, drawn))
    return [problem for problem in problems if problem]


def write_page(
    run: RunDirectory, judgement: Judgement, record: RunRecord, evidence: Evidence,
    drawn: Sequence[Picture] | None = None,
) -> str:  # fmt: skip
    """Write report.html of a finished run. Returns one sentence if that failed, else an empty string."""
    kept, path = _with_kept_traces(run, evidence), run.path / "report.html"
    return _attempt("report.html", partial(_write, path, lambda: page_of(judgement, record, kept, drawn)))


def write_live_page(run: RunDirectory, page: str, progress: str) -> None:
    """Write report.html of a run in progress: `page_of` it, with `progress` (HTML) filled in. Raises OSError."""
    # Not synchronised: measuring would wait for the disk, and the page is written again soon.
    write_atomically(run.path / "report.html", page.replace(LIVE, progress, 1), sync=False)


def page_of(
    judgement: Judgement, record: RunRecord, evidence: Evidence, drawn: Sequence[Picture] | None = None, *,
    goes_on: bool = False,
) -> str:  # fmt: skip
    """Render report.html, with run.json as it was judged, and with figures that are already drawn."""
    from pytest_ddpscale.report.html_page import render_html

    return render_html(judgement, _as_judged(record, judgement), evidence, drawn, goes_on=goes_on)


def _with_kept_traces(run: RunDirectory, evidence: Evidence) -> Evidence:
    """The evidence without traces of profiles that are not in the run directory, so that no report names them."""
    lost = [one.trace for one in evidence.profiles if one.trace and not (run.path / one.trace).is_file()]
    if not lost:
        return evidence
    kept = [replace(one, trace="") if one.trace in lost else one for one in evidence.profiles]
    return replaced(evidence, profiles=kept)


def _as_judged(record: RunRecord, judgement: Judgement) -> RunRecord:
    """Replace thresholds and notes by those of the judgement: judging again leaves run.json unchanged."""
    basis, operator = judgement.basis, JUDGED_NOTE + OPERATOR
    if not basis:
        return record
    notes = [key for key in basis if key.startswith(JUDGED_NOTE) and key != operator]
    return replace(
        record,
        thresholds=ThresholdsUsed(basis["thresholds_path"], basis["thresholds_sha256"], judgement.extends),
        noted=record.noted | {key.removeprefix(JUDGED_NOTE): basis[key] for key in notes},
    )


def _write(path: Path, render: Callable[[], str]) -> None:
    write_atomically(path, render())


def _attempt(what: str, write: Callable[[], object]) -> str:
    """Call `write`; return a sentence if it fails, so a full disk does not stop the other files."""
    try:
        write()
    except WritingError as error:
        return f"{what} {error.found}. {error.action}"
    except OSError as error:
        return f"{what} could not be written: {error.strerror or error}"
    return ""
