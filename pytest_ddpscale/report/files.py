"""Every file of a report, written into the run directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_ddpscale.errors import WritingError
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.records import Measurement
from pytest_ddpscale.results.run_directory import RunDirectory, write_atomically
from pytest_ddpscale.results.verdicts import Judgement


def write_reports(
    run: RunDirectory,
    judgement: Judgement,
    record: dict[str, Any],
    plan: Plan,
    measurements: list[Measurement],
    flops_per_image: Mapping[str, float],
    *,
    is_final: bool = True,
) -> list[str]:
    """Write verdicts.json first, then the views of it.

    Args:
        run: where the files go.
        judgement: what was concluded.
        record: the content of the measured run's run.json.
        plan: of the measured run.
        measurements: of the measured run.
        flops_per_image: of the measured run, by study.
        is_final: else measuring still goes on, and plots and junit.xml, which take longest, can wait.

    Returns:
        One sentence for each file that could not be written.
    """
    from pytest_ddpscale.report.markdown import render_markdown

    if judgement.basis:
        # A run that is judged again keeps its own thresholds in run.json; the report names those that judged.
        digest = judgement.basis["thresholds_sha256"]
        record = record | {"thresholds": {"path": judgement.basis["thresholds_path"], "sha256": digest}}
    plots: list[Path] = []
    problems = [_attempt("verdicts.json", lambda: run.write_json(run.verdicts_json, judgement.as_json()))]
    if is_final:
        from pytest_ddpscale.report.junit import render_junit
        from pytest_ddpscale.report.plots import write_plots

        junit = run.path / "junit.xml"
        problems.append(_attempt("junit.xml", lambda: write_atomically(junit, render_junit(judgement))))
        problems.append(_attempt("plots", lambda: plots.extend(write_plots(measurements, plan, judgement, run.plots))))
    names = [f"plots/{path.name}" for path in plots]

    def write_markdown() -> None:
        text = render_markdown(judgement, record, plan, names, measurements, flops_per_image)
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
