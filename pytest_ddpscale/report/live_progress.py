"""Progress of a running measurement, for its page."""

from __future__ import annotations

from collections.abc import Collection
from html import escape

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report.text import count_text, one_line
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import RoundEnd, StudyEnd, StudyStart

REFRESH_S = 5
# The placeholder in the page; escaping keeps it out of any text from outside.
LIVE = '<div id="live"></div>'


class LiveProgress:
    """State that the page shows, from a run's records: finished studies, current round, each arm's latest block."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._study = ""
        self._rounds = 0
        self._blocks: dict[str, Block] = {}

    def hear(self, record: AnyRecord) -> None:
        """Store one record; `section` computes what is shown later, while no block is timed."""
        if isinstance(record, StudyEnd):
            self._ended.add(record.study)
        elif isinstance(record, StudyStart):
            self._study, self._rounds, self._blocks = record.study, 0, {}
        elif isinstance(record, RoundEnd):
            self._study, self._rounds = record.study, record.round + 1
        elif isinstance(record, Block):
            self._blocks[record.arm] = record

    def section(self, plan: Plan, missing: Collection[str], written_at: str) -> str:
        """HTML, escaped.

        Args:
            plan: of the whole run.
            missing: ids of the studies that this session measures; the plan's others were measured before.
            written_at: date and time of writing, as text.
        """
        planned = dict.fromkeys((*plan.study_ids, *self._ended))
        done = sum(1 for study in planned if study in self._ended or study not in missing)
        lines = [
            f"Measuring: {done} of {count_text(len(planned), 'study', 'studies')} done. Last written at "
            f"{written_at}; this page reloads every {REFRESH_S} s. If the time stops changing, the run was killed: "
            "judge it, or continue it with --ddp-resume."
        ]
        if self._study and self._study not in self._ended:
            of_rounds = {study.id: study.rounds for study in plan.studies}.get(self._study)
            lines.append(f"{self._study}: round {self._rounds}" + (f" of at most {of_rounds}" if of_rounds else ""))
        paragraphs = "".join(f'<p class="live" role="status">{escape(one_line(line))}</p>\n' for line in lines)
        return paragraphs + self._arms(plan.unit)

    def _arms(self, unit: str) -> str:
        rows = "".join(
            f'<tr><th scope="row">{escape(one_line(arm))}</th><td class="n">{block.round + 1}</td>'
            f'<td class="n">{_samples_per_s(block):.1f}</td></tr>\n'
            for arm, block in sorted(self._blocks.items())
        )
        numbers = "".join(f'<th scope="col" class="n">{name}</th>' for name in ("Round", f"{unit}/s per rank"))
        head = f'<th scope="col">Arm</th>{numbers}'
        caption = "Latest blocks, at the pace of the slowest rank; not judged yet"
        table = f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>\n"
        return table if rows else ""


def _samples_per_s(block: Block) -> float:
    return float(block.per_second.min())
