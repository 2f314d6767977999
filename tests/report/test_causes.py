"""Reports lead with the cause, each told once with what to do, and hide no failure that it does not explain."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression
from msgspec import structs

from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.report.causes import (
    Cause,
    causes,
    counts_text,
    explained_text,
    headline,
    warnings,
)
from pytest_ddpscale.report.culprits import read_findings
from pytest_ddpscale.report.explain import explain, verdict_properties
from pytest_ddpscale.report.junit import render_junit
from pytest_ddpscale.report.next_steps import cause_records, next_steps
from pytest_ddpscale.report.terminal import brief_lines, table_lines
from pytest_ddpscale.report.words.cause_kinds import OF_CHECK
from pytest_ddpscale.run.coverage import Coverage, GpuCoverage, NodeCoverage
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import WRONG_DATA, Blocker, Culprit, Judgement, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.approved import assert_approved, masked
from tests.builders.culprits import gpu, link, node
from tests.builders.judgements import HOSTILE, MEMORY, NOT_MEASURED, PASSED, RUN, hostile_judgement
from tests.builders.simulated_runs import judged_run
from tests.report.written import ticket_of

GPU = gpu(evidence="1.20× the median of 7 peers", uuid="GPU-4f1c0b7a-77aa", slowdown=1.2, peers=7)
FAST = replace(GPU, slowdown=None)
DOUBT = replace(GPU, is_certain=False)
WRONG = gpu("node7", 4, "computed wrong data in 8 of 8 rounds", "GPU-9", computed_wrong=True)
NODE = node("node7", "all 8 ranks slow", slowdown=1.31)
STARVED = replace(node("node7", "all GPUs wait for the host: 85 % busy"), because=because("starved", 0.85))
LINK = link("node7", "node9", evidence="8 of its 8 pairs fail")
OPEN: dict[str, Any] = {"outcome": "inconclusive", "reason": "the bound lies inside the interval"}
WARNS: dict[str, Any] = {"severity": "warn"}
THROUGHPUT: dict[str, Any] = {
    "metric": "throughput_per_gpu",
    "bound": {"at_least": 1180.0},
    "value": 900.0,
    "unit": "img/s",
}
PRODUCTS: dict[str, Any] = {
    "metric": "matmul_tflops",
    "bound": {"at_least": 900.0},
    "published": 1000.0,
    "value": 800.0,
}
STEPS: dict[str, Any] = {"metric": "step_time_p95", "bound": {"at_most": 468.0}, "published": 446.0, "value": 550.0}
PAIRS: dict[str, Any] = {"metric": "pair_bandwidth_gbps", "workload": "send-recv-256mib", "bound": {"at_least": 40.0}}
BUSBW: dict[str, Any] = {"metric": "busbw_gbps", "workload": "all-reduce-16gib", "bound": {"at_least": 40.0}}
ALIKE: dict[str, Any] = {"remarks": (because("most-fail-alike", 16, 16, "nodes"),)}
PLACES = {"measurements_path": "my runs/one/measurements.jsonl", "verdicts_path": "my runs/one/judged-1/verdicts.json"}
AGAIN = structs.replace(RUN, again=("pytest", "--gpu-sku=b200", "--ddp-budget=10m", "acceptance"))
WHOLE = Blocker("run", "acceptance", "but between nodes a bound is missed", "run-not-accepted")
TESTS = tuple(Blocker("test", f"test_{name}", "failed") for name in ("fans", "disk"))


def missed(name: str, *culprits: Culprit, **changes: Any) -> Verdict:
    """A requirement on weak scaling that fails."""
    given: dict[str, Any] = {
        "outcome": "failed",
        "value": 0.8,
        "interval": None,
        "reason": "below the bound",
        "culprits": culprits,
    }
    return replace(PASSED, id=name, **(given | changes))


def checked(name: str, *culprits: Culprit, **changes: Any) -> Verdict:
    given: dict[str, Any] = {"metric": "node_check", "workload": name, "world_size": 1, "value": 0.5}
    return missed(f"node_check[{name}]", *culprits, **(given | changes))


def uniformity(outcome: Any, **changes: Any) -> Verdict:
    return replace(
        PASSED, id="rank_uniformity[a]", metric="rank_uniformity", bound={"at_most": 1.05}, value=1.01, outcome=outcome,
        **changes,
    )  # fmt: skip


def absent(name: str, **changes: Any) -> Verdict:
    return replace(NOT_MEASURED, id=name, **changes)


def of_node(number: int, value: float) -> Culprit:
    """A suspected node by its value, beside the median of the others."""
    why = because("node-alone", "throughput_per_gpu", value, "img/s", 15, 900.0)
    return replace(node(f"node{number}", f"{value:g} img/s on this node alone"), is_certain=False, because=why)


def judged(*verdicts: Verdict, outcome: Any = "rejected", **changes: Any) -> Judgement:
    given: dict[str, Any] = {"basis": PLACES} | changes
    return Judgement("b200", outcome, "why", verdicts, **given)


def nodes(*hosts: str, **changes: Any) -> Coverage:
    return Coverage(tuple(NodeCoverage(host, (), "", ()) for host in hosts), **changes)


SLOW = missed("throughput", **THROUGHPUT, published=1200.0)
BY_VALUE = replace(of_node(7, 700.0), is_certain=True)
NODES_ALIKE = [of_node(number, 900.0 + number) for number in range(16)]
LOST = GpuCoverage(Place("node7", None, "GPU-4f1c", 3), rounds_missing=31, missing_in=("open",))
PEER = GpuCoverage(Place("node7", None, "GPU-5", 4), rounds_missing=1)
WAIVED = Waiver("A. Name", "a fan is ordered", date(2026, 12, 31))
WORKLOADS = tuple(f"what w{number} trains (batch_size 64 → 128)" for number in range(13))
LONG = "rank 0 on n1 failed in warm-up: RuntimeError: " + "x" * 2000
BUCKETS = f"parameters differ ({', '.join(f'in bucket {number}' for number in range(60))}); gradients differ"
MANY = [
    missed(f"throughput_per_gpu[r-{2**number}gpu]", GPU, metric="throughput_per_gpu", unit="img/s")
    for number in range(4)
]

# What was judged: who is named, and how. causes.txt has what is said of each and what to do.
JUDGED: dict[str, Judgement] = {
    "the cause that explains most comes first": judged(
        missed("one", gpu(index=4, slowdown=1.5)), missed("two", GPU), missed("three", GPU)
    ),
    "the most severe comes first, whatever it explains": judged(
        *(missed(f"slow-{number}", GPU) for number in range(5)), missed("link", LINK), checked("gpus", gpu(index=5)),
        checked("ecc", gpu(index=6)), missed("wrong", WRONG, flags=(WRONG_DATA,)),
    ),
    "a node that misses GPUs": judged(checked("gpus", node("node7"))),
    "certain of a device, or not": judged(missed("one", GPU), missed("two", DOUBT)),
    "certain, with a larger doubt": judged(missed("one", GPU), missed("open", replace(DOUBT, slowdown=1.31), **OPEN)),
    "certain, and missing from a collective": judged(
        missed("one", FAST, **PRODUCTS), missed("open", **BUSBW | OPEN),
        coverage=Coverage((NodeCoverage("node7", (), "", (replace(LOST, place=FAST.place),)),)),
    ),
    "a host may starve its GPUs": judged(missed("one", replace(STARVED, is_certain=False))),
    "a host starves its GPUs": judged(missed("one", STARVED)),
    "a GPU with the reading that shows it": judged(
        missed("one", GPU),
        missed("two", replace(GPU, shown=because("at-clock", 640.0, 1410.0, 180.0, 400.0, ("sw_power_cap",)))),
    ),
    "a GPU explains its node where one slow rank can": judged(
        missed("one", GPU), missed("efficiency", replace(NODE, slowdown=None)),
        replace(MEMORY, id="memory", outcome="failed", value=75.0, culprits=(replace(NODE, slowdown=None),)),
    ),
    "a GPU explains nothing of another node": judged(missed("one", GPU), missed("two", node("node9"))),
    "wrong data beside speed": judged(missed("one", GPU), missed("two", GPU, WRONG, flags=(WRONG_DATA,))),
    "wrong data of a slow GPU": judged(missed("one", GPU), missed("two", replace(WRONG, slowdown=1.2))),
    "a slow node with a GPU that is less slow": judged(missed("one", replace(GPU, slowdown=1.05)), missed("two", NODE)),
    "a slow node with a slower GPU": judged(missed("one", NODE, replace(GPU, slowdown=1.52)), missed("two", NODE)),
    "a slow node with a slower GPU that has memory errors": judged(
        missed("one", NODE, replace(GPU, slowdown=1.52)), checked("ecc", replace(FAST, evidence="3 memory errors"))
    ),
    "a slow node explains what is open for it": judged(
        missed("one", NODE), missed("open", replace(NODE, is_certain=False), **OPEN | {"value": 0.9745}),
        missed("far", replace(NODE, is_certain=False), **OPEN | {"value": 0.3}),
    ),
    "a uniform loss": judged(
        SLOW, uniformity("passed"), missed("products", *NODES_ALIKE[:3], **PRODUCTS), missed("steps", **STEPS),
        missed("open", **PRODUCTS | OPEN | {"value": 880.0}),
    ),
    "a uniform loss beside what is open": judged(SLOW, uniformity("passed"), uniformity("inconclusive", **WARNS)),
    "a uniform loss beside a GPU that warns": judged(SLOW, uniformity("passed"), uniformity("failed", **WARNS)),
    "a uniform loss beside a slow GPU": judged(SLOW, uniformity("passed"), missed("weak", GPU)),
    "a uniform loss beside a loss of scaling, and a gain": judged(
        SLOW, uniformity("passed"), missed("weak"), missed("better", **PRODUCTS | OPEN | {"value": 1001.0})
    ),
    "a loss of all nodes": judged(missed("throughput", *NODES_ALIKE, **THROUGHPUT, published=1200.0, **ALIKE)),
    "a loss of all nodes without a reference": judged(missed("throughput", *NODES_ALIKE, **THROUGHPUT, **ALIKE)),
    "a loss of all GPUs without a reference": judged(missed("throughput", **THROUGHPUT), uniformity("passed")),
    "a loss of nodes, of which one is far off": judged(
        missed("throughput", *NODES_ALIKE[:3], of_node(3, 700.0), **THROUGHPUT, **ALIKE)
    ),
    "a node by its value alone": judged(missed("throughput", BY_VALUE, **THROUGHPUT)),
    "a node by its value, and all compute alike": judged(
        missed("throughput", BY_VALUE, **THROUGHPUT), uniformity("passed")
    ),
    "a node by its value, and it computes slowly": judged(
        missed("throughput", BY_VALUE, **THROUGHPUT), uniformity("inconclusive", culprits=(DOUBT,))
    ),
    "a node by its value, and a product of it is slow": judged(
        missed("throughput", BY_VALUE, **THROUGHPUT), missed("products", replace(DOUBT, slowdown=None), **PRODUCTS)
    ),
    "a node by what no communication is in": judged(missed("throughput", BY_VALUE, **THROUGHPUT, world_size=1)),
    "a node by its communication": judged(missed("exposed", BY_VALUE, metric="exposed_communication")),
    "a loss of scaling on all nodes": judged(missed("weak", *NODES_ALIKE, **ALIKE)),
    "one rank may be slow": judged(missed("throughput", DOUBT, **THROUGHPUT, published=1200.0)),
    "a GPU that was missing": judged(
        missed("open", **OPEN), NOT_MEASURED, outcome="incomplete",
        coverage=Coverage((NodeCoverage("node7", (), "", (LOST, PEER)),)),
    ),
    "who only warns, of an accepted machine": judged(
        PASSED, missed("one", GPU, **WARNS), missed("two", GPU, **WARNS), outcome="accepted"
    ),
    "who is at fault, and also warns": judged(
        missed("one", GPU), missed("two", GPU, **WARNS), missed("three", LINK, **WARNS)
    ),
    "an error, and what it left unmeasured": judged(
        *(absent(one, reason="missing data") for one in "abc"),
        absent("broken", outcome="error", reason="rank 2 failed: CUDA out of memory\nlast lines:\n  x"),
        outcome="incomplete",
    ),
    "a GPU whose error ended its ranks": judged(
        absent("one", outcome="error", reason="CUDA error", culprits=(replace(DOUBT, slowdown=None),)),
        absent("transport", reason="missing data"), outcome="incomplete",
    ),
    "certain for an error, suspected of a failure": judged(
        absent("one", outcome="error", reason="CUDA error", culprits=(FAST,)), missed("two", DOUBT)
    ),
    "a check of nobody certain": judged(checked("kernels", DOUBT, reason="node7: torch has no kernels for GPU 3")),
    "tests of the site": judged(
        missed("one", GPU), absent("two"), blockers=(*TESTS, Blocker("test", "test_own", "skipped"))
    ),
    "all kinds of unmet": judged(
        PASSED, missed("failed"), missed("open", **OPEN), NOT_MEASURED, missed("warned", **WARNS),
        missed("waived", waiver=WAIVED),
    ),
    "what may stay unmeasured": judged(PASSED, NOT_MEASURED, outcome="accepted", allows_unmeasured=True),
    "changed by the site": judged(missed("one", GPU), altered=("peak", *WORKLOADS)),
    "a link of a bound between nodes": judged(
        missed("pairs", LINK, **PAIRS, **WARNS), coverage=nodes("node7", "node9", between_nodes=("pairs",)),
        blockers=(WHOLE,), outcome="incomplete",
    ),
    "a GPU slow with all its partners": judged(missed("pairs", FAST, **PAIRS)),
    "a collective, and pairs that warn": judged(missed("busbw", **BUSBW), missed("pairs", FAST, **PAIRS, **WARNS)),
    "the budget ran out": judged(absent("late", reason="no complete round", remarks=(because("budget-spent"),))),
    "an environment variable": judged(missed("one", flags=("by-variable",), reason="CUDA_LAUNCH_BLOCKING=1")),
    "beyond the hardware": judged(missed("one", flags=("implausible",), **OPEN)),
    "host-bound": judged(missed("one", flags=("host-bound",), **OPEN)),
    "its own past": judged(missed("one", GPU, metric="no_regression", workload="")),
    "undecided": judged(missed("one", **OPEN), outcome="incomplete"),
    "too few peers": judged(missed("one", because=because("few-peers", 1, 2), **OPEN)),
    "many requirements": judged(*MANY),
    "interrupted": judged(
        *(absent(f"one[{i}]", reason=f"interrupted in study {i}") for i in range(3)), missed("open", **OPEN),
        outcome="incomplete", unfinished=True,
    ),
    "a slow GPU of an interrupted run": judged(missed("one", GPU), unfinished=True),
    "a slow GPU of an incomplete run": judged(missed("one", GPU), outcome="incomplete"),
    "the only node": judged(missed("one", node("vm", is_certain=False)), coverage=nodes("vm")),
    "a very long line": judged(absent("one", outcome="error", reason=LONG), outcome="incomplete"),
    "very long evidence": judged(
        missed("one", replace(WRONG, evidence=BUCKETS), flags=(WRONG_DATA,)), missed("two", GPU), not_selected=7
    ),
}  # fmt: skip
# Runs of which nothing can be measured again, or otherwise.
RUNS: Mapping[str, RunRecord | None] = {
    "imported": structs.replace(AGAIN, status="imported"),
    "simulated": structs.replace(AGAIN, status="simulated"),
    "not known": None,
    "busy before": structs.replace(AGAIN, load=(7.5, 4)),
    "idle before": structs.replace(AGAIN, load=(3.5, 4)),
}
TYPED = ("-k", "one or two", "--ddp-world-sizes=1,2", "-mgpu", "-kone")


def told(cause: Cause, judgement: Judgement, run: RunRecord | None) -> Iterator[str]:
    names, count = ", ".join(sorted(cause.explains)), explained_text(cause.explains, judgement)
    yield f"  {cause.severity} {cause.category} {cause.id}, explains {names} ({count or 'warns'}):"
    yield f"    {cause.sentence}"
    yield from (
        f"    → {step.action}{': ' * bool(step.command)}{step.command}" for step in next_steps(cause, judgement, run)
    )


def test_causes_are_told_as_they_were_approved() -> None:
    lines: list[str] = []
    for name, judgement in JUDGED.items():
        lines += [f"## {name}", headline(judgement), counts_text(judgement)]
        for cause in (*causes(judgement), *warnings(judgement)):
            lines += told(cause, judgement, AGAIN)
        lines.append("")
    for name, run in RUNS.items():
        lines.append(f"## of a run {name}")
        for of in ("the cause that explains most comes first", "undecided"):
            lines += told(causes(JUDGED[of])[0], JUDGED[of], run)
        lines.append("")
    typed = structs.replace(AGAIN, argv=("/bin/pytest", *TYPED, "-v"))
    lines += ["## of a run with a selection", *told(causes(JUDGED["interrupted"])[0], JUDGED["interrupted"], typed)]
    assert_approved("causes.txt", masked("\n".join(lines)))


@pytest.mark.parametrize("name", JUDGED)
def test_no_blocker_is_hidden_and_no_suspect_is_isolated(name: str) -> None:
    judgement = JUDGED[name]
    found = causes(judgement)
    names = {one.id: f"{one.metric}[{one.workload}] {one.id}" for one in judgement.verdicts}
    assert len(headline(judgement)) <= 300
    explained = frozenset().union(*(cause.explains for cause in found))
    assert explained >= {one.name for one in judgement.blockers}
    for cause in found:
        assert cause.category != "ISOLATE" or any(one.is_certain and one.kind != "link" for one in cause.culprits)
        for step in next_steps(cause, judgement, AGAIN):
            words = shlex.split(step.command)
            if "-k" in words[:-1]:
                selects = Expression.compile(words[-1])
                assert all(selects.evaluate(partial(_is_in, names.get(one, one))) for one in cause.explains)
    records = cause_records(judgement, AGAIN)
    assert [one.category for one in records][: 0 if judgement.accepts else len(found)] == [
        one.category for one in found if not judgement.accepts
    ]


def _is_in(name: str, word: str, /, **_: object) -> bool:
    return word in name


def test_every_check_is_of_a_cause() -> None:
    assert list(OF_CHECK) == list(NODE_CHECKS)


def test_a_simulation_is_told_to_be_rehearsed_unless_it_was() -> None:
    whole = replace(WHOLE, reason="simulated: no machine was measured (3 passed; 90 not selected)")
    found = judged(outcome="incomplete", blockers=(whole,), not_selected=90, simulated=True)
    assert "--ddp-rehearse shows" in next_steps(causes(found)[0], found, AGAIN)[0].action
    assert headline(found).count("not selected") == 1
    rehearsed = replace(found, rehearsed="would be partial, 3 passed; 90 not selected")
    assert (causes(rehearsed), headline(rehearsed)) == ((), "REHEARSED: would be partial, 3 passed; 90 not selected")


def test_what_a_headline_leaves_out_stands_elsewhere() -> None:
    """All that a site changed, and all lines of an error."""
    changed, broken = JUDGED["changed by the site"], JUDGED["an error, and what it left unmeasured"]
    [error] = [one for one in broken.verdicts if one.outcome == "error"]
    said = [
        ticket_of(changed).replace("\\", ""),
        explain(error, "thresholds.yaml:1", "pytest"),
        "\n".join(line for line, _ in table_lines(broken, 200)),
        ticket_of(broken),
        render_junit(broken),
        str(dict(verdict_properties(error))),
    ]
    assert all(one in said[0] for one in WORKLOADS)
    assert all(line.strip() in text for line in error.reason.split("\n") for text in said[1:])


def test_a_headline_never_cuts_a_host_into_another_name() -> None:
    for room in range(250, 278):
        long = absent("one", outcome="error", reason=f"{('w ' * room)[:room]} node-in-west-wing stopped")
        assert not re.search(r"node-(?!in-west-wing)", headline(judged(long, outcome="incomplete"))), room


def test_hostile_names_stay_one_printable_line() -> None:
    judgement = replace(hostile_judgement(), blockers=(Blocker("test", HOSTILE, HOSTILE),))
    assert headline(judgement).isprintable()
    for cause in causes(judgement):
        _, *lines = told(cause, judgement, AGAIN)
        assert all(line.isprintable() for line in lines)


# Faults as they are typed, GPUs in nodes of eight, and the study in which the run was interrupted.
FAULTS: dict[str, tuple[str, int, int | None]] = {
    "a slow GPU": ("slow-gpu:3:1.2", 16, None),
    "a slow node": ("throttle:1:1.2", 32, None),
    "a slow port of a node": ("slow-port:8:0.3", 32, None),
    "packets lost between nodes": ("lossy-link:1:0.05", 32, None),
    "a slow pair of GPUs": ("slow-pair:3:4:0.3", 8, None),
    "a GPU with a quarter of its PCIe lanes": ("bad-gpu:3:lanes", 16, None),
    "memory errors": ("bad-gpu:9:ecc", 16, None),
    "wrong data": ("corrupt-rank:3", 8, None),
    "a lost GPU": ("missing-rank:5:2", 8, None),
    "all GPUs slow": ("slow-gpu:all:1.2", 8, None),
    "a fault that comes and goes": ("at-times:3:1.3:3", 16, None),
    "an interrupted run": ("slow-gpu:3:1.0", 8, 2),
}
REMARKS = ("note:", "warning:", "All devices")


def test_the_terminal_says_what_was_approved_of_ten_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no node is drained that a person should look at."""
    monkeypatch.chdir(tmp_path)  # so that paths are as short everywhere
    lines: list[str] = []
    for number, (name, (fault, gpus, studies)) in enumerate(FAULTS.items(), 1):
        # A measured run ends no round without all of its ranks, so this one stays simulated.
        again = () if fault.startswith("missing-rank") else ("pytest", "--gpu-sku=a100", "acceptance")
        run, judgement = judged_run(Path(f"fault-{number}"), fault, gpus=gpus, again=again, studies=studies)
        said = [line for line, _ in brief_lines(judgement, 100, run.read_run())]
        assert sum(max(1, -(-len(line) // 100)) for line in said) <= 24, name
        run.write_json(run.verdicts_json, judgement)
        found = read_findings(run.path, rehearses=not again)
        isolated = [one for one in causes(judgement) if one.category == "ISOLATE"]
        at_fault = {culprit.host for one in isolated for culprit in one.culprits if culprit.is_certain}
        is_alone = gpus == 8 and not isolated  # a rejected node without any other is drained whatever the cause
        assert is_alone or at_fault == {one.host for one in found if one.use == "drain"}, name
        lines += [f"## {name}: {fault} on {gpus} GPUs", *takewhile(lambda line: not line.startswith(REMARKS), said), ""]
    assert_approved("ten-faults.txt", masked("\n".join(lines)))
