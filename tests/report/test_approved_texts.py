"""What reports say of every outcome and of every kind of requirement: the words that somebody has read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.report.causes import headline
from pytest_ddpscale.report.csv_tables import render_culprits, render_values
from pytest_ddpscale.report.explain import explain
from pytest_ddpscale.report.html_page import render_html
from pytest_ddpscale.report.markdown import render_markdown
from pytest_ddpscale.report.plan_text import plan_lines
from pytest_ddpscale.report.prometheus import render_prometheus
from pytest_ddpscale.report.terminal import brief_lines, table_lines
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, Judgement, UniformLoss
from tests.approved import assert_approved, masked
from tests.builders import untrained
from tests.builders.judgements import ACCEPTED, EVIDENCE, GANG, JUDGEMENT, PASSED, PLAN, RATIO, RUN
from tests.report.page_text import page_text

# A deviation of earlier launches, a doubtful single one, and what chance can do to the outcome.
LAUNCHES = replace(
    ACCEPTED,
    verdicts=(
        replace(PASSED, launch_sd=0.0123),
        replace(RATIO, flags=(THIS_LAUNCH_ONLY,)),
    ),
    uniform_loss=UniformLoss(0.0028, 0.051, 0.95, "throughput_per_gpu[a]", 5),
)
JUDGEMENTS = {"every-outcome": JUDGEMENT, "untrained": untrained.JUDGEMENT, "launches": LAUNCHES}


def terminal(judgement: Judgement) -> Iterable[str]:
    """At the end of a session, with -v, and on a narrow terminal."""
    for lines in (brief_lines(judgement, 100, RUN), table_lines(judgement, 160, RUN), table_lines(judgement, 80, RUN)):
        yield from (f"{style or '-':9} {line}" for line, style in lines)
        yield ""


def items(judgement: Judgement) -> Iterable[str]:
    """What pytest shows of each item that did not pass."""
    for verdict in judgement.verdicts:
        yield explain(verdict, "thresholds.yaml:42", "pytest it")
    yield headline(judgement)


def markdown(judgement: Judgement) -> Iterable[str]:
    yield render_markdown(judgement, RUN, ["plots/weak-throughput.png"], EVIDENCE)


def page(judgement: Judgement) -> Iterable[str]:
    plan = untrained.PLAN if judgement is untrained.JUDGEMENT else PLAN
    yield page_text(render_html(judgement, RUN, replace(EVIDENCE, plan=plan)))


WRITERS: dict[str, Callable[[Judgement], Iterable[str]]] = {
    "terminal.txt": terminal, "items.txt": items, "report.md": markdown, "page.txt": page,
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGEMENTS)
def test_reports_say_what_was_approved(name: str) -> None:
    for ending, write in WRITERS.items():
        assert_approved(f"{name}-{ending}", masked("\n".join(write(JUDGEMENTS[name]))))


def test_files_for_programs_are_as_they_were_approved() -> None:
    assert_approved("every-outcome.prom", render_prometheus(JUDGEMENT, RUN, [GANG]))
    assert_approved("values.csv", render_values(JUDGEMENT, EVIDENCE))
    assert_approved("culprits.csv", render_culprits(JUDGEMENT))


def test_the_plan_says_what_was_approved() -> None:
    probes = ProbeStudy((Arm("matmul-fp16"), Arm("all-reduce-32mib", 8)), 16, 0.5)
    plans = (
        PLAN,
        replace(PLAN, nodes=4, ranks_per_node=8, probes=probes, pairs=pair_study("cuda")),
        replace(PLAN, device_type="cpu", studies=()),
    )
    assert_approved(
        "plans.txt", masked("\n".join(line for plan in plans for line in plan_lines(plan, 5, isolate=False)))
    )
