"""What reports say of every outcome and of every kind of requirement: the words that somebody has read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date

import pytest
from msgspec.structs import replace as with_fields

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.report.causes import headline
from pytest_ddpscale.report.csv_tables import render_culprits, render_values
from pytest_ddpscale.report.explain import explain
from pytest_ddpscale.report.listings import plan_lines
from pytest_ddpscale.report.prometheus import render_prometheus
from pytest_ddpscale.report.terminal import brief_lines, quiet_lines, table_lines
from pytest_ddpscale.report.words.reasons import say, worded
from pytest_ddpscale.run.coverage import Coverage, GpuCoverage, NodeCoverage, PathCoverage
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.records import ArmProfile
from pytest_ddpscale.run.run_json import Resumed
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, AgainstSlowest, Judgement, UniformLoss
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.approved import assert_approved, masked
from tests.builders import untrained
from tests.builders.culprits import gpu, node
from tests.builders.judged import evidence_of_plan
from tests.builders.judgements import (
    ACCEPTED,
    EVIDENCE,
    FAILED,
    GANG,
    INCONCLUSIVE,
    JUDGEMENT,
    MEASUREMENTS,
    NOT_MEASURED,
    PASSED,
    PLAN,
    RATIO,
    RUN,
    WARNED,
)
from tests.builders.profiles import profile
from tests.report.page_text import page_text
from tests.report.written import page_of, ticket_of

# A deviation of earlier launches, a doubtful single one, and what chance can do to the outcome.
LAUNCHES = replace(
    ACCEPTED,
    verdicts=(
        replace(PASSED, launch_sd=0.0123),
        replace(RATIO, flags=(THIS_LAUNCH_ONLY,)),
    ),
    coverage=Coverage((NodeCoverage("node7", ("training",), gpus=(GpuCoverage(Place("node7"), ("training",)),) * 4),)),
    uniform_loss=UniformLoss(0.0028, 0.051, 0.95, "throughput_per_gpu[a]", 5),
)
# Of three nodes one lost a GPU, one was left out, one never answered; measured in two sessions, with profiles.
NODES = (
    NodeCoverage("n1", ("survey", "training"), gpus=(GpuCoverage(Place("n1", None, "GPU-1", 0), ("training",)),)),
    NodeCoverage("n2", ("survey",), gpus=(GpuCoverage(Place("n2", None, "GPU-2", 0)),)),
    NodeCoverage("n3", (), "disk: full"),
)
MACHINE = replace(
    ACCEPTED,
    basis={"judged_at": "2026-03-02T08:30:00+00:00", "note_operator": "B. Name", "measurements_sha256": "cd"},
    coverage=Coverage(
        NODES, unnamed_nodes=1, ranks_per_node=1, paths=(PathCoverage(0, 1, 20.0, 1), PathCoverage(1, 2, 5.0, 3)),
    ),
)  # fmt: skip
RESUMED = Resumed(at="2026-03-01T11:00:00+00:00", argv=(), status_before="interrupted", measured_anew={},
                  noted={"operator": "Bob"})  # fmt: skip
MEASURED = with_fields(
    RUN, resumed=(RESUMED,), noted={"operator": "A. Name", "site": "Hall 2", "rack": "B 7", "ticket": "OPS-7"}
)
SURVEYS = {
    f"n{at}": Survey(f"n{at}", 0.0, topology=topology, versions={"driver": driver, "torch": "other"})
    for at, (topology, driver) in enumerate((("Y", "565.3"), ("X", "570.1"), ("X", "570.1"), ("", None)))
}
PROFILES = [
    profile("weak/r", "ddp@2", [(100, 60, 30), (100, 62, 30), (100, 64, 30)], [(40, 10)] * 3),
    *(
        ArmProfile(study="weak/r", arm=f"each@{2**at}", gang=0, rank=0, problem="torch without Kineto")
        for at in range(5)
    ),
]
# Failures with one reason, a suspect, a culprit of what only warns, a pass by the spread of GPUs, signs, and notes that
# only -v and the page tell, in an environment that changes what was measured.
SLOW, OTHER = (gpu("node7", at, "1.20× the median of 7 peers", f"GPU-{at}", slowdown=1.2, peers=7) for at in (3, 4))
ALIKE = [
    replace(FAILED, id=f"throughput_per_gpu[w{at}-8gpu]", reason=f"GPU 3 is 1.20{at}× the median", culprits=(SLOW,))
    for at in range(3)
]
LOW = [because("low-utilization", "strong/r", f"ddp@{2**at}", 1, 1, 0.8, 0, "n1", 0.7) for at in range(3)]
SET = [because("variable", "A=1", hosts, "a clause", kind, why)
       for kind, hosts, why in (("slows", ("n3",), ""), ("reroutes", (), "it hangs"))]  # fmt: skip
REMARKS = (*SET, because("text", "the clock was set"), *LOW)
MIXED = replace(
    JUDGEMENT,
    verdicts=(
        *ALIKE,
        replace(ALIKE[0], id="throughput_per_gpu[w9-8gpu]", culprits=(OTHER, node("n8", "perhaps", is_certain=False))),
        replace(WARNED, culprits=(OTHER,)),
        replace(ALIKE[0], id="throughput_per_gpu[w8]", waiver=Waiver("A. Name", "a fan is ordered", date(2099, 1, 1))),
        replace(PASSED, value=0.9455, reason="98.1 % against the slowest GPU keeps the bound", provisional=True,
                against_slowest=AgainstSlowest(0.981, (0.977, 0.984), "GPU 5 on n1", 0.037)),
        worded(replace(RATIO, flags=(THIS_LAUNCH_ONLY,), remarks=(because("host-bound"), because("text", "hot")))),
    ),
    notes=tuple(map(say, REMARKS)), remarks=REMARKS, uniform_loss=UniformLoss(0.021, 0.021, 0.95, "throughput", 1),
)  # fmt: skip
ALL = evidence_of_plan(PLAN, MEASUREMENTS)
IMPORTED = replace(JUDGEMENT, outcome="incomplete", verdicts=(NOT_MEASURED, PASSED, RATIO))
JUDGEMENTS = {"mixed": MIXED, "every-outcome": JUDGEMENT, "untrained": untrained.JUDGEMENT, "launches": LAUNCHES}


def terminal(judgement: Judgement) -> Iterable[str]:
    """At the end of a session, with -q, with -v, and on narrow terminals."""
    for lines in (
        brief_lines(judgement, 100, RUN), quiet_lines(judgement, 80, RUN), table_lines(judgement, 160, RUN),
        table_lines(judgement, 80, RUN), brief_lines(judgement, 40, RUN),
    ):  # fmt: skip
        yield from (f"{style or '-':9} {line}" for line, style in lines)
        yield ""


def items(judgement: Judgement) -> Iterable[str]:
    """What pytest shows of each item that did not pass."""
    for verdict in judgement.verdicts:
        yield explain(verdict, "thresholds.yaml:42", "pytest it")
    yield headline(judgement)


def ticket(judgement: Judgement) -> Iterable[str]:
    yield ticket_of(judgement)


def page(judgement: Judgement) -> Iterable[str]:
    """With measurements of the machine that was launched several times, so with times and costs."""
    evidence = replace(EVIDENCE, plan=untrained.PLAN) if judgement is untrained.JUDGEMENT else EVIDENCE
    yield page_text(page_of(judgement, RUN, ALL if judgement is LAUNCHES else evidence))


WRITERS: dict[str, Callable[[Judgement], Iterable[str]]] = {
    "terminal.txt": terminal, "items.txt": items, "report.md": ticket, "page.txt": page,
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGEMENTS)
def test_reports_say_what_was_approved(name: str) -> None:
    for ending, write in WRITERS.items():
        assert_approved(f"{name}-{ending}", masked("\n".join(write(JUDGEMENTS[name]))))


def test_the_report_of_a_machine_says_what_of_it_was_tested_by_whom() -> None:
    evidence = replace(EVIDENCE, profiles=PROFILES, surveys=SURVEYS)
    assert_approved("machine-report.md", masked(ticket_of(MACHINE, MEASURED, evidence)))
    assert_approved("machine-page.txt", masked(page_text(page_of(MACHINE, MEASURED, evidence))))


def test_times_and_costs_wait_for_the_end() -> None:
    assert "Scaling, as numbers" not in page_of(LAUNCHES, RUN, ALL, goes_on=True)


def test_nobody_signs_what_goes_on_or_was_simulated() -> None:
    """And a terminal of any width says that right before the outcome."""
    simulated = replace(ACCEPTED, simulated=True)
    for name, page in (("simulated", page_of(simulated)), ("going-on", page_of(JUDGEMENT, goes_on=True))):
        lines = [line for line, _ in table_lines(simulated, 20)] if name == "simulated" else []
        assert_approved(f"{name}-first.txt", masked("\n".join([first_screen(page), *lines])))


def first_screen(page: str) -> str:
    return page_text(page.partition('id="figures"')[0])


def test_an_import_that_lacks_measurements_leads_with_what_was_imported() -> None:
    """And with what was imported and blocks acceptance before all."""
    run = with_fields(RUN, status="imported", source="a paper")
    changed = replace(IMPORTED, altered=("uses another batch",), not_selected=2)
    undecided = replace(IMPORTED, verdicts=(*IMPORTED.verdicts, INCONCLUSIVE))
    lines = [first_screen(page_of(IMPORTED, run)), *(line for line, _ in brief_lines(IMPORTED, 80, run))]
    lines += [headline(one, run) for one in (IMPORTED, changed, undecided)]
    assert_approved("imported-first.txt", masked("\n".join([*lines, headline(IMPORTED)])))


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
