"""Every file of a report, written into the run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as replaced
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from pytest_ddpscale.errors import WritingError
from pytest_ddpscale.report.next_steps import cause_records
from pytest_ddpscale.report.while_measuring import REFRESH_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import JUDGED_NOTE, OPERATOR, RunRecord, ThresholdsUsed
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util.atomic_writing import write_atomically
from pytest_ddpscale.util.document import Block, Picture, above_headline, html_page, markdown_page


def write_reports(
    run: RunDirectory, judgement: Judgement, record: RunRecord, evidence: Evidence, *, is_final: bool = True
) -> list[str]:
    """Write verdicts.json first, then the reports made from it, the run's run.json and its evidence.

    While measuring goes on (`is_final` false), plots, machine-readable reports and the page are left out; the page is
    then written separately.

    Returns:
        One sentence for each file that could not be written.
    """
    from pytest_ddpscale.report.figures import figures, write_pngs
    from pytest_ddpscale.report.page import report, title_of

    record = _as_judged(record, judgement)
    # No report names traces of profiles that are not in the run directory.
    profiles = [
        profile if (run.path / profile.trace).is_file() else replace(profile, trace="") for profile in evidence.profiles
    ]
    kept = replaced(evidence, profiles=profiles)
    drawn = list[Picture]()
    recorded = replaced(judgement, causes=cause_records(judgement, record))
    problems = [_attempt("verdicts.json", lambda: run.write_json(run.verdicts_json, recorded))]
    if is_final:
        from pytest_ddpscale.report import csv_tables, junit, prometheus

        views: dict[str, Callable[[], str]] = {
            "junit.xml": lambda: junit.render_junit(judgement),
            "values.csv": lambda: csv_tables.render_values(judgement, evidence),
            "culprits.csv": lambda: csv_tables.render_culprits(judgement),
            "metrics.prom": lambda: prometheus.render_prometheus(judgement, record, evidence.gangs),
        }
        problems += [_written(run.path / name, render) for name, render in views.items()]
        problems.append(_attempt("plots", lambda: drawn.extend(figures(kept, judgement, record)), Exception))
        problems.append(_attempt("plots", lambda: write_pngs(drawn, run.plots)))
    document = cache(lambda: report(judgement, record, kept, drawn))
    problems.append(_written(run.path / "report.md", lambda: markdown_page(document())))
    if is_final:
        page = run.path / "report.html"
        problems.append(_written(page, lambda: html_page(title_of(judgement), document())))
    return [problem for problem in problems if problem]


def write_live_page(run: RunDirectory, page: str, progress: Sequence[Block]) -> None:
    """Write report.html of a run in progress: `live_page` of it, with `progress`. Raises OSError."""
    # Not synchronised: measuring would wait for the disk, and the page is written again soon.
    write_atomically(run.path / "report.html", above_headline(page, *progress), sync=False)


def live_page(judgement: Judgement, record: RunRecord, evidence: Evidence) -> str:
    """Render report.html of a run that goes on, with run.json as it was judged; browsers reload it."""
    from pytest_ddpscale.report.figures import figures
    from pytest_ddpscale.report.page import report, title_of

    record, drawn = _as_judged(record, judgement), list[Picture]()
    _attempt("plots", lambda: drawn.extend(figures(evidence, judgement, record)), Exception)
    blocks = report(judgement, record, evidence, drawn, goes_on=True)
    return html_page(title_of(judgement, goes_on=True), blocks, REFRESH_S)


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


def _written(path: Path, render: Callable[[], str]) -> str:
    return _attempt(path.name, lambda: write_atomically(path, render()))


def _attempt(file: str, write: Callable[[], object], foreseen: type[Exception] = OSError) -> str:
    """Call `write`; return a sentence if it fails, so a full disk does not stop the other files.

    Of figures anything may fail: a run is worth more than they are.
    """
    try:
        write()
    except WritingError as error:
        return f"{file} {error.found}. {error.action}"
    except foreseen as error:
        return f"{file} could not be written: {getattr(error, 'strerror', None) or error}"
    return ""
