"""The report of a run as the files that are written."""

from __future__ import annotations

from pytest_ddpscale.report.page import report, title_of
from pytest_ddpscale.report.while_measuring import REFRESH_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util.document import Picture, Table, html_page, markdown_page
from tests.builders.judgements import EVIDENCE, RUN

PICTURE = Picture(
    "weak-throughput", "Weak scaling", "How it scales.", "falls", b"<svg/>", bytes,
    Table(("GPUs", "img/s"), [("1", "9")]), is_wide=False, path="plots/weak.png",
)  # fmt: skip


def page_of(judgement: Judgement, run: RunRecord = RUN, evidence: Evidence = EVIDENCE, *, goes_on: bool = False) -> str:
    """report.html."""
    blocks = report(judgement, run, evidence, [PICTURE], goes_on=goes_on)
    return html_page(title_of(judgement, goes_on=goes_on), blocks, REFRESH_S * goes_on)


def ticket_of(judgement: Judgement, run: RunRecord = RUN, evidence: Evidence = EVIDENCE) -> str:
    """report.md."""
    return markdown_page(report(judgement, run, evidence, [PICTURE]))
