"""Comparison of a run with the last acceptance of the same nodes, for the first page of reports."""

from __future__ import annotations

from pytest_ddpscale.report.text import count_text, one_line
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util.listing import first_few


def last_acceptance_lines(judgement: Judgement) -> list[str]:
    """One line; none if the history has no acceptance of these nodes.

    ``compared with the acceptance of 2026-10-02 (run runs/x): throughput 0.99 … 1.01×, nothing worse``.
    """
    last = judgement.last_acceptance
    if last is None:
        return []
    waivers = " with waivers" if last.outcome == "accepted_with_waivers" else ""
    said = []
    if last.least_throughput is not None and last.most_throughput is not None:
        least, most = f"{last.least_throughput:.2f}", f"{last.most_throughput:.2f}"
        said.append(f"throughput {least if least == most else f'{least} … {most}'}×")
    if not last.compared:
        said.append("no requirement in common")
    elif last.worse:
        said.append(f"worse: {len(last.worse)} of {count_text(last.compared, 'requirement')}, {first_few(last.worse)}")
    else:
        said.append(f"nothing worse among {count_text(last.compared, 'requirement')}")
    which = f"compared with the acceptance{waivers} of {last.began[:10]} (run {last.run})"
    return [one_line(f"{which}: {', '.join(said)}")]
