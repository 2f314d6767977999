"""The page of a run that goes on says how far it is, and what each rank does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.report.live_progress import LiveProgress
from pytest_ddpscale.report.progress import Progress
from pytest_ddpscale.run.records import RoundEnd, StudyEnd, StudyStart
from pytest_ddpscale.run.telemetry import TelemetryBlock
from pytest_ddpscale.util.document import html
from tests.builders.judgements import HOSTILE, PLAN
from tests.builders.records import gang_on, steady_block

FIRST, SECOND = PLAN.study_ids[:2]
WHEN = "2026-03-01T10:00:00+00:00"


def heard(*records: object) -> LiveProgress:
    progress = LiveProgress(Progress(PLAN, now=lambda: 0.0))
    for record in records:
        progress.hear(record)  # type: ignore[arg-type]
    return progress


def shown(progress: LiveProgress) -> str:
    return html(*progress.section(WHEN))


def telemetry(ranks: tuple[int, ...], power_w: Any, hot_c: Any = 60.0) -> TelemetryBlock:
    return TelemetryBlock(
        study=SECOND, arm="ddp@2", round=0, gang=0, ranks=ranks, started_unix_s=1.0, ended_unix_s=2.0,
        power_w=power_w, temperature_c=hot_c,
    )  # fmt: skip


def cells(section: str, first: str) -> list[str]:
    row = re.search(rf'<tr><th scope="row">{first}</th>(.*?)</tr>', section)
    return re.findall("<td[^>]*>(.*?)</td>", row[1]) if row else []


def of_second() -> LiveProgress:
    """In the second round of its second study, on two ranks."""
    blocks = [steady_block(SECOND, Arm("ddp", 2, 4), number, (0, 1), 100.0 + number) for number in range(2)]
    return heard(
        gang_on(["n1", "n2"], 1), StudyStart(study=FIRST, unix_s=1.0),
        steady_block(FIRST, Arm("alone", 1, 4), 0, (0,), 7.0), StudyEnd(FIRST, "decided"),
        StudyStart(study=SECOND, unix_s=2.0), *blocks, RoundEnd(study=SECOND, round=1, arms=("ddp@2",)),
        steady_block(SECOND, Arm("alone", 1, 4), 1, (0,), 999.0),
    )  # fmt: skip


def test_each_rank_of_the_latest_block_of_the_most_has_a_line_with_what_is_known() -> None:
    section = shown(of_second())
    assert re.search(r"\d+ % done, .* left .*</progress> " + f"{SECOND}: round 2/6", section)
    assert f"Written at {WHEN}" in section
    assert f"<li>{FIRST}: decided after 1 rounds in 0:00</li>" in section
    assert f"Latest block of {SECOND}: ddp@2, round 2<" in section
    assert cells(section, "1")[2] == "101.0"
    assert cells(section, "1")[5:] == ["–", "–"], "a CPU has neither power nor temperature"


def test_power_and_temperature_are_the_newest_of_each_rank() -> None:
    progress = of_second()
    progress.hear(telemetry((0, 1), (600.0, 650.0)))
    progress.hear(telemetry((0,), (700.4,), 71.6))
    section = shown(progress)
    assert cells(section, "0")[5:] == ["700", "72"]
    assert cells(section, "1")[5:] == ["650", "60"]
    progress.hear(telemetry((1, 0), (None, 1.0), None))
    assert cells(shown(progress), "1")[5:] == ["–", "–"], "the driver gave no value"
    progress.hear(gang_on(["n1", "n2"], 1, number=1))
    progress.hear(steady_block(SECOND, Arm("ddp", 2, 4), 1, (0, 1), 100.0, gang=1))
    assert cells(shown(progress), "0")[5:] == ["–", "–"], "it is of an earlier gang"


def test_of_many_ranks_the_slowest_and_the_hottest_are_shown() -> None:
    ranks = tuple(range(100))
    block = steady_block(
        SECOND, Arm("each", 100, 4), 0, ranks, 100.0, seconds=tuple(1.0 + 0.01 * rank for rank in ranks), series={}
    )
    hot = tuple(60.0 + (rank if rank < 9 else 0) for rank in ranks)
    told = StudyStart(study=SECOND, unix_s=2.0), telemetry(ranks, 500.0, hot), block
    section = shown(heard(gang_on(["n1"], 100), *told))
    assert re.findall(r'<th scope="row">(\d+)</th>', section) == [str(rank) for rank in (*range(1, 9), *range(92, 100))]
    assert "the slowest and the hottest of 100 ranks" in section


@pytest.mark.parametrize("record", [StudyStart(study=HOSTILE, unix_s=1.0), StudyEnd(HOSTILE, "error", HOSTILE)])
def test_names_from_records_stay_text(record: StudyStart | StudyEnd) -> None:
    section = shown(heard(record))
    assert "<script" not in section
    assert "&lt;script&gt;" in section
