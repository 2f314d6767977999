"""Every file of a report, written into the run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from pytest_ddpscale.errors import WritingError
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.results.run_directory import RunDirectory, write_atomically
from pytest_ddpscale.results.run_json import RunRecord, ThresholdsUsed
from pytest_ddpscale.results.verdicts import Judgement


def write_reports(
    run: RunDirectory, judgement: Judgement, record: RunRecord, evidence: Evidence, *, is_final: bool = True
) -> list[str]:
    """Write verdicts.json first, then the views of it, with what the measured run's run.json and evidence say.

    Unless it is final measuring still goes on, and plots and junit.xml, which take longest, can wait.

    Returns:
        One sentence for each file that could not be written.
    """
    from pytest_ddpscale.report.markdown import render_markdown

    if judgement.basis:
        # A run that is judged again keeps its own thresholds in run.json; the report names those that judged.
        digest = judgement.basis["thresholds_sha256"]
        record = replace(
            record, thresholds=ThresholdsUsed(judgement.basis["thresholds_path"], digest, judgement.extends)
        )
    plots: list[Path] = []
    problems = [_attempt("verdicts.json", lambda: run.write_json(run.verdicts_json, judgement))]
    if is_final:
        from pytest_ddpscale.report.junit import render_junit
        from pytest_ddpscale.report.plots import write_plots

        junit = run.path / "junit.xml"
        problems.append(_attempt("junit.xml", lambda: write_atomically(junit, render_junit(judgement))))
        drawn = (evidence.columns, evidence.plan, judgement, run.plots)
        problems.append(_attempt("plots", lambda: plots.extend(write_plots(*drawn))))
    names = [f"plots/{path.name}" for path in plots]

    def write_markdown() -> None:
        text = render_markdown(judgement, record, evidence.plan, names, evidence.columns, evidence.flops_per_image)
        write_atomically(run.path / "report.md", text)

    problems.append(_attempt("report.md", write_markdown))
    return [problem for problem in problems if problem]


def _attempt(what: str, write: Callable[[], object]) -> str:
    """A full disk costs one file, not the others."""
    try:
        write()
    except WritingError as error:
        return f"{what} {error.found}. {error.action}"
    except OSError as error:
        return f"{what} could not be written: {error.strerror or error}"
    return ""
