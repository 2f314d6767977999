"""Reports lead with the cause, each told once with what to do, and hide no failure that it does not explain."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
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
from pytest_ddpscale.report.words.verdicts import short_name
from pytest_ddpscale.run.coverage import Coverage, GpuCoverage, NodeCoverage
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import WRONG_DATA, Blocker, Culprit, Judgement, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.approved import assert_approved, masked, without_counts
from tests.builders.clusters import a100
from tests.builders.culprits import gpu, link, node
from tests.builders.judgements import NOT_MEASURED, PASSED, RUN
from tests.builders.simulated_runs import judged_run
from tests.report.written import ticket_of

# Who is named, and what a requirement changes: the words of `JUDGED`.
GPU = gpu(evidence="1.20× the median of 7 peers", uuid="GPU-4f1c0b7a-77aa", slowdown=1.2, peers=7)
GPU4, GPU5, GPU6 = gpu(index=4, slowdown=1.5), gpu(index=5), gpu(index=6)
FAST = replace(GPU, slowdown=None)
DOUBT = replace(GPU, is_certain=False)
FAST_DOUBT = replace(DOUBT, slowdown=None)
SLOWER, LESS_SLOW = replace(GPU, slowdown=1.52), replace(GPU, slowdown=1.05)
POWERED = replace(GPU, shown=because("at-clock", 640.0, 1410.0, 180.0, 400.0, ("sw_power_cap",)))
MEMORY_ERRORS = replace(FAST, evidence="3 memory errors")
WRONG = gpu("node7", 4, "computed wrong data in 8 of 8 rounds", "GPU-9", computed_wrong=True)
BUCKETS = f"parameters differ ({', '.join(f'in bucket {number}' for number in range(60))}); gradients differ"
LONG_WRONG, SLOW_WRONG = replace(WRONG, evidence=BUCKETS), replace(WRONG, slowdown=1.2)
NODE = node("node7", "all 8 ranks slow", slowdown=1.31)
FAST_NODE, NODE_DOUBT = replace(NODE, slowdown=None), replace(NODE, is_certain=False)
FEW_GPUS, OTHER_NODE, VM = node("node7"), node("node9"), node("vm", is_certain=False)
STARVED = replace(node("node7", "all GPUs wait for the host: 85 % busy"), because=because("starved", 0.85))
STARVED_DOUBT = replace(STARVED, is_certain=False)
LINK = link("node7", "node9", evidence="8 of its 8 pairs fail")
OPEN = {"outcome": "inconclusive", "reason": "the bound lies inside the interval"}
ABSENT = {"outcome": "not_measured", "value": None, "reason": "missing data"}
ERROR = {"outcome": "error", "value": None, "reason": "CUDA error"}
WARNS, FAILED = {"severity": "warn"}, {"outcome": "failed"}
WAIVED = {"waiver": Waiver("A. Name", "a fan is ordered", date(2026, 12, 31))}
ALIKE = {"remarks": (because("most-fail-alike", 16, 16, "nodes"),)}
FEW_PEERS = {"because": because("few-peers", 1, 2)}
THROUGHPUT = {"metric": "throughput_per_gpu", "bound": {"at_least": 1180.0}, "value": 900.0, "unit": "img/s"}
PUBLISHED = THROUGHPUT | {"published": 1200.0}
PRODUCTS = {"metric": "matmul_tflops", "bound": {"at_least": 900.0}, "published": 1000.0, "value": 800.0}
STEPS = {"metric": "step_time_p95", "bound": {"at_most": 468.0}, "published": 446.0, "value": 550.0}
PAIRS = {"metric": "pair_bandwidth_gbps", "workload": "send-recv-256mib", "bound": {"at_least": 40.0}}
BUSBW = {"metric": "busbw_gbps", "workload": "all-reduce-16gib", "bound": {"at_least": 40.0}}
COPIES = {"metric": "host_bandwidth_gbps", "workload": "host-to-device", "world_size": 1, "bound": {"at_least": 40.0}}
EVEN = {"metric": "rank_uniformity", "bound": {"at_most": 1.05}, "value": 1.01, "outcome": "passed"}
PAST, EXPOSED = {"metric": "no_regression", "workload": ""}, {"metric": "exposed_communication"}
MEMORY = {"metric": "peak_memory_gib", "bound": {"at_most": 70.0}, "value": 75.0}
ON_ONE = {"world_size": 1}
SPENT = {"reason": "no complete round", "remarks": (because("budget-spent"),)}


def missed(line: str, **changes: Any) -> Verdict:
    """A requirement on weak scaling that fails, or the node check of that name: ``one GPU OPEN``."""
    name, *words = line.split()
    named = [globals()[word] for word in words]
    given: dict[str, Any] = {"id": name, "outcome": "failed", "value": 0.8, "interval": None}
    given |= {"reason": "below the bound", "culprits": tuple(one for one in named if isinstance(one, Culprit))}
    if name in NODE_CHECKS:
        given |= {"id": f"node_check[{name}]", "metric": "node_check", "workload": name, "world_size": 1, "value": 0.5}
    for one in named:
        given |= one if isinstance(one, dict) else {}
    return replace(PASSED, **(given | changes))


def of_node(number: int, value: float, **changes: Any) -> Culprit:
    """A suspected node by its value, beside the median of the others."""
    why = because("node-alone", "throughput_per_gpu", value, "img/s", 15, 900.0)
    return replace(
        node(f"node{number}", f"{value:g} img/s on this node alone"), because=why, **{"is_certain": False} | changes
    )


def judged(line: str, *verdicts: Verdict, outcome: Any = "rejected", **changes: Any) -> Judgement:
    """Of requirements as `missed` reads them: ``one GPU; two NODE WARNS``."""
    verdicts = (*map(missed, filter(None, line.split(";"))), *verdicts)
    return Judgement("b200", outcome, "why", verdicts, **{"basis": PLACES, **changes})


def nodes(*hosts: str, gpus: Sequence[GpuCoverage] = (), **changes: Any) -> dict[str, Coverage]:
    return {"coverage": Coverage(tuple(NodeCoverage(host, (), "", tuple(gpus)) for host in hosts), **changes)}


BY_VALUE = of_node(7, 700.0, is_certain=True)
EACH_NODE = tuple(of_node(number, 900.0 + number) for number in range(16))
ALL_NODES, THREE_NODES = {"culprits": EACH_NODE} | ALIKE, {"culprits": EACH_NODE[:3]}
ONE_FAR = {"culprits": (*EACH_NODE[:3], of_node(3, 700.0))} | ALIKE
PLACES = {"measurements_path": "my runs/one/measurements.jsonl", "verdicts_path": "my runs/one/judged-1/verdicts.json"}
AGAIN = structs.replace(RUN, again=("pytest", "--gpu-sku=b200", "--ddp-budget=10m", "acceptance"))
WHOLE = Blocker("run", "acceptance", "but between nodes a bound is missed", "run-not-accepted")
NOT_MEASURED_AT_ALL = "simulated: no machine was measured (3 passed; 90 not selected)"
SIMULATED: dict[str, Any] = {
    "outcome": "incomplete", "blockers": (replace(WHOLE, reason=NOT_MEASURED_AT_ALL),), "not_selected": 90,
    "simulated": True,
}  # fmt: skip
TESTS = tuple(Blocker("test", f"test_{name}", "failed") for name in ("fans", "disk"))
LOST = GpuCoverage(Place("node7", None, "GPU-4f1c", 3), rounds_missing=31, missing_in=("open",))
PEER = GpuCoverage(Place("node7", None, "GPU-5", 4), rounds_missing=1)
WORKLOADS = tuple(f"what w{number} trains (batch_size 64 → 128)" for number in range(13))
FAILURE = "rank 2 failed: CUDA out of memory\nlast lines:\n  x"
LONG = "rank 0 on n1 failed in warm-up: RuntimeError: " + "x" * 2000
EVEN_LOSS = "throughput PUBLISHED; rank_uniformity[a] EVEN"
OF_ITS_VALUE = "throughput BY_VALUE THROUGHPUT"

# What was judged: who is named, and how. causes.txt has what is said of each and what to do.
JUDGED: dict[str, Judgement] = {
    "the cause that explains most comes first": judged("one GPU4; two GPU; three GPU"),
    "copies from the host": judged("copies FAST COPIES"),
    "the most severe comes first, whatever it explains": judged(
        "slow-0 GPU; slow-1 GPU; slow-2 GPU; slow-3 GPU; slow-4 GPU; link LINK; gpus GPU5; ecc GPU6",
        missed("wrong WRONG", flags=(WRONG_DATA,)),
    ),
    "a node that misses GPUs": judged("gpus FEW_GPUS"),
    "certain of a device, or not": judged("one GPU; two DOUBT"),
    "certain, and missing from a collective": judged(
        "one FAST PRODUCTS; open BUSBW OPEN", **nodes("node7", gpus=[replace(LOST, place=FAST.place)])
    ),
    "a host may starve its GPUs": judged("one STARVED_DOUBT"),
    "a host starves its GPUs": judged("one STARVED"),
    "a GPU with the reading that shows it": judged("one GPU; two POWERED"),
    "a GPU explains its node where one slow rank can": judged(
        "one GPU; efficiency FAST_NODE; memory FAST_NODE MEMORY",
    ),
    "a GPU explains nothing of another node": judged("one GPU; two OTHER_NODE"),
    "wrong data beside speed": judged("one GPU", missed("two GPU WRONG", flags=(WRONG_DATA,))),
    "wrong data of a slow GPU": judged("one GPU; two SLOW_WRONG"),
    "a slow node with a GPU that is less slow": judged("one LESS_SLOW; two NODE"),
    "a slow node with a slower GPU": judged("one NODE SLOWER; two NODE"),
    "a slow node with a slower GPU that has memory errors": judged("one NODE SLOWER; ecc MEMORY_ERRORS"),
    "a slow node explains what is open for it": judged(
        "one NODE", missed("open NODE_DOUBT OPEN", value=0.9745), missed("far NODE_DOUBT OPEN", value=0.3)
    ),
    "a uniform loss": judged(
        f"{EVEN_LOSS}; products THREE_NODES PRODUCTS; steps STEPS", missed("open PRODUCTS OPEN", value=880.0)
    ),
    "a uniform loss beside what is open": judged(f"{EVEN_LOSS}; rank_uniformity[a] EVEN OPEN WARNS"),
    "a uniform loss beside a GPU that warns": judged(f"{EVEN_LOSS}; rank_uniformity[a] EVEN FAILED WARNS"),
    "a uniform loss beside a slow GPU": judged(f"{EVEN_LOSS}; weak GPU"),
    "a uniform loss beside a loss of scaling, and a gain": judged(
        f"{EVEN_LOSS}; weak", missed("better PRODUCTS OPEN", value=1001.0)
    ),
    "a loss of all nodes": judged("throughput ALL_NODES PUBLISHED"),
    "a loss of all GPUs without a reference": judged("throughput THROUGHPUT; rank_uniformity[a] EVEN"),
    "a loss of nodes, of which one is far off": judged("throughput ONE_FAR THROUGHPUT"),
    "a node by its value alone": judged(OF_ITS_VALUE),
    "a node by its value, and all compute alike": judged(f"{OF_ITS_VALUE}; rank_uniformity[a] EVEN"),
    "a node by its value, and it computes slowly": judged(f"{OF_ITS_VALUE}; rank_uniformity[a] DOUBT EVEN OPEN"),
    "a node by its value, and a product of it is slow": judged(f"{OF_ITS_VALUE}; products FAST_DOUBT PRODUCTS"),
    "a node by what no communication is in": judged(f"{OF_ITS_VALUE} ON_ONE"),
    "a node by its communication": judged("exposed BY_VALUE EXPOSED"),
    "a loss of scaling on all nodes": judged("weak ALL_NODES"),
    "one rank may be slow": judged("throughput DOUBT PUBLISHED"),
    "a GPU that was missing": judged(
        "open OPEN", NOT_MEASURED, outcome="incomplete", **nodes("node7", gpus=[LOST, PEER])
    ),
    "who only warns, of an accepted machine": judged("one GPU WARNS; two GPU WARNS", PASSED, outcome="accepted"),
    "who is at fault, and also warns": judged("one GPU; two GPU WARNS; three LINK WARNS"),
    "an error, and what it left unmeasured": judged(
        "a ABSENT; b ABSENT; c ABSENT", missed("broken ERROR", reason=FAILURE), outcome="incomplete"
    ),
    "a GPU whose error ended its ranks": judged("one FAST_DOUBT ERROR; transport ABSENT", outcome="incomplete"),
    "certain for an error, suspected of a failure": judged("one FAST ERROR; two DOUBT"),
    "a check of nobody certain": judged("", missed("kernels DOUBT", reason="node7: torch has no kernels for GPU 3")),
    "tests of the site": judged("one GPU; two ABSENT", blockers=(*TESTS, Blocker("test", "test_own", "skipped"))),
    "all kinds of unmet": judged("failed; open OPEN; warned WARNS; waived WAIVED", PASSED, NOT_MEASURED),
    "what may stay unmeasured": judged("", PASSED, NOT_MEASURED, outcome="accepted", allows_unmeasured=True),
    "changed by the site": judged("one GPU", altered=("peak", *WORKLOADS)),
    "a link of a bound between nodes": judged(
        "pairs LINK PAIRS WARNS", **nodes("node7", "node9", between_nodes=("pairs",)), blockers=(WHOLE,),
        outcome="incomplete",
    ),
    "a GPU slow with all its partners": judged("pairs FAST PAIRS"),
    "a collective, and pairs that warn": judged("busbw BUSBW; pairs FAST PAIRS WARNS"),
    "the budget ran out": judged("late ABSENT SPENT"),
    "an environment variable": judged("", missed("one", flags=("by-variable",), reason="CUDA_LAUNCH_BLOCKING=1")),
    "beyond the hardware": judged("", missed("one OPEN", flags=("implausible",))),
    "host-bound": judged("", missed("one OPEN", flags=("host-bound",))),
    "its own past": judged("one GPU PAST"),
    "undecided": judged("one OPEN", outcome="incomplete"),
    "too few peers": judged("one OPEN FEW_PEERS"),
    "interrupted": judged(
        "open OPEN", *(missed(f"one[{i}] ABSENT", reason=f"interrupted in study {i}") for i in range(3)),
        outcome="incomplete", unfinished=True,
    ),
    "a slow GPU of an interrupted run": judged("one GPU", unfinished=True),
    "a slow GPU of an incomplete run": judged("one GPU", outcome="incomplete"),
    "the only node": judged("one VM", **nodes("vm")),
    "a very long line": judged("", missed("one ERROR", reason=LONG), outcome="incomplete"),
    "a simulated run": judged("", **SIMULATED),
    "a rehearsed run": judged("", **SIMULATED, rehearsed="would be partial, 3 passed; 90 not selected"),
    "very long evidence": judged("two GPU", missed("one LONG_WRONG", flags=(WRONG_DATA,)), not_selected=7),
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
    names = {verdict.id: f"{verdict.metric}[{verdict.workload}] {verdict.id}" for verdict in judgement.verdicts}
    assert len(headline(judgement)) <= 300
    explained = frozenset().union(*(cause.explains for cause in found))
    assert judgement.rehearsed or explained >= {blocker.name for blocker in judgement.blockers}
    for cause in found:
        assert cause.category != "ISOLATE" or any(
            culprit.is_certain and culprit.kind != "link" for culprit in cause.culprits
        )
        for step in next_steps(cause, judgement, AGAIN):
            words = shlex.split(step.command)
            if "-k" in words[:-1]:
                selects = Expression.compile(words[-1])
                assert all(selects.evaluate(partial(_is_in, names.get(one, one))) for one in cause.explains)
    written = [one.category for one in cause_records(judgement, AGAIN)]
    assert judgement.accepts or written[: len(found)] == [one.category for one in found]


def _is_in(name: str, word: str, /, **_: object) -> bool:
    return word in name


def test_every_check_is_of_a_cause() -> None:
    assert [*OF_CHECK] == [*dict.fromkeys(name.removesuffix("_under_load") for name in NODE_CHECKS)]


def test_what_a_headline_leaves_out_stands_elsewhere() -> None:
    """All that a site changed, and all lines of an error."""
    changed, broken = JUDGED["changed by the site"], JUDGED["an error, and what it left unmeasured"]
    [error] = [verdict for verdict in broken.verdicts if verdict.outcome == "error"]
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
        long = missed("one ERROR", reason=f"{('w ' * room)[:room]} node-in-west-wing stopped")
        assert not re.search(r"node-(?!in-west-wing)", headline(judged("", long, outcome="incomplete"))), room


def all_said(judgement: Judgement) -> str:
    """Everything on the terminal, with and without ``-v``."""
    return "\n".join(line for lines in (brief_lines, table_lines) for line, _ in lines(judgement, 1000))


def test_a_rank_that_the_end_of_a_run_cut_short_is_not_lost(tmp_path: Path) -> None:
    _, judgement = judged_run(tmp_path, "missing-rank:3:7")
    assert judgement.outcome == "incomplete"
    assert not any(cause.culprits for cause in causes(judgement))


def test_a_rejected_node_is_not_called_too_little_slow_or_uncertain(tmp_path: Path) -> None:
    _, judgement = judged_run(tmp_path, "throttle:1:1.05", gpus=64, rounds=16)
    assert headline(judgement).startswith("REJECTED: node simulated-1 is 1.05× slower than its peers")
    assert not any("on simulated-1" in note and "not clearly enough" in note for note in judgement.notes)


def test_a_gpu_to_look_at_is_not_denied_and_a_slow_one_is_not_excluded(tmp_path: Path) -> None:
    cluster = a100(unwaited=-0.03)
    _, judgement = judged_run(tmp_path, "slow-gpu:3:1.03", rounds=16, cluster=cluster)
    said = all_said(judgement)
    assert "look at GPU 3 on simulated-0" in said
    assert "every GPU is within 5.0 % of its peers, so no device is named" in headline(judgement)
    assert "no device is named for it" in said
    assert "GPUs are alike" not in said


def test_a_failure_whose_value_meets_the_bound_says_why(tmp_path: Path) -> None:
    run, judgement = judged_run(tmp_path, "corrupt-rank:3")
    [row, *_] = [verdict for verdict in judgement.verdicts if verdict.outcome == "failed" and (verdict.margin or 0) > 0]
    report = ticket_of(judgement, run.read_run())
    assert f": {short_name(row)} | **FAIL** |" in report
    assert re.search(rf"- .*: {short_name(row)}.*: Cause 1: computed wrong data in 8 of 8 rounds", report)
    alone = replace(row, culprits=(), flags=())
    said = "\n".join(line for line, _ in brief_lines(replace(judgement, verdicts=(alone,), coverage=None), 1000))
    assert said.count("computed wrong data") == 2, "in the headline and below the row"


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
    assert_approved("ten-faults.txt", without_counts(masked("\n".join(lines))))
