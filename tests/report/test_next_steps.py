"""What reports say to do about a cause, and that it can be pasted."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from msgspec import structs

from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.report.causes import cause_records, causes, headline, next_steps, warnings
from pytest_ddpscale.report.words.cause_kinds import CAUSES, OF_CHECK
from pytest_ddpscale.run.coverage import Coverage, NodeCoverage
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Blocker, Culprit, Judgement, Verdict
from tests.builders.culprits import gpu, link, node
from tests.builders.judgements import FAILED, NOT_MEASURED, RATIO, RUN, judgement_with

DOCS = Path(__file__).parents[2] / "docs"
GPU = gpu(evidence="1.20× the median of 7 peers", uuid="GPU-4f1c0b7a-77aa", slowdown=1.2, peers=7)
AGAIN = structs.replace(RUN, again=("pytest", "--gpu-sku=b200", "--ddp-budget=10m", "acceptance"))
PLACES = {"measurements_path": "my runs/one/measurements.jsonl", "verdicts_path": "my runs/one/judged-1/verdicts.json"}


def failed(number: int = 1, *culprits: Culprit, **changes: object) -> tuple[Verdict, ...]:
    names = [f"throughput_per_gpu[resnet152-fp16-{2**i}gpu]" for i in range(number)]
    return tuple(replace(FAILED, id=name, culprits=culprits, **changes) for name in names)  # type: ignore[arg-type]


def judged(*verdicts: Verdict, **changes: object) -> Judgement:
    return replace(judgement_with(*verdicts), basis=PLACES, **changes)  # type: ignore[arg-type]


def commands(judgement: Judgement, run: RunRecord | None = AGAIN) -> list[str]:
    """The commands for the first cause."""
    return [step.command for step in next_steps(causes(judgement)[0], judgement, run)]


def test_every_check_is_of_a_cause() -> None:
    assert list(OF_CHECK) == list(NODE_CHECKS)


def test_the_page_has_a_paragraph_for_each_id_and_the_glossary_is_short() -> None:
    page, glossary = ((DOCS / name).read_text(encoding="utf-8") for name in ("how-to/rejected.md", "glossary.md"))
    told = re.findall(r"^\*\*([a-z-]+)\*\* \(([1-6])", page, re.MULTILINE)
    assert told == [(name, str(kind.severity)) for name, kind in CAUSES.items()]
    assert len(re.findall("^[|] [a-zA-Z]", glossary, re.MULTILINE)) - 1 <= 30


LINK = link("node3", "node4", evidence="8 of its 8 pairs fail")
PAIRS = {"metric": "pair_bandwidth_gbps", "workload": "send-recv-256mib", "bound": {"at_least": 40.0}, "unit": "GB/s"}


def test_a_link_of_a_bound_between_nodes_that_only_warns_is_the_cause_and_not_the_run_as_a_whole() -> None:
    (one,) = failed(1, LINK, severity="warn", **PAIRS)
    pairs = replace(one, id="pair_bandwidth_gbps[send-recv-256mib-all]")
    nodes = tuple(NodeCoverage(host, (), "", ()) for host in ("node3", "node4"))
    whole = Blocker("run", "acceptance", "but between nodes a bound is missed", "run-not-accepted")
    found = judged(pairs, coverage=Coverage(nodes, between_nodes=(pairs.id,)), blockers=(whole,), simulated=True)
    (cause,) = causes(found)
    assert (cause.id, cause.category) == ("slow-node-link", "CHECK")
    assert cause.sentence.startswith("link between node node3 and node node4: 8 of its 8 pairs fail")
    assert next_steps(cause, found, AGAIN)[0].action.startswith("look at node3, node4: check cable")
    simulated = replace(found, verdicts=(), blockers=(replace(whole, reason="simulated: no machine was measured"),))
    assert "--ddp-rehearse shows" in next_steps(causes(simulated)[0], simulated, AGAIN)[0].action
    other = replace(found, verdicts=())
    assert next_steps(causes(other)[0], other, AGAIN)[0].action == CAUSES["run-not-accepted"].action


def test_a_gpu_that_is_slow_with_all_its_partners_is_drained_and_a_link_is_not() -> None:
    (of_gpu,) = causes(judged(*failed(1, replace(GPU, slowdown=None), **PAIRS)))
    assert (of_gpu.id, of_gpu.category) == ("slow-communication", "ISOLATE")
    (of_link,) = causes(judged(*failed(1, link("node3", "node3"), **PAIRS)))
    assert (of_link.id, of_link.category) == ("slow-gpu-link", "CHECK")
    (suspected,) = causes(judged(*failed(1, replace(LINK, is_certain=False), **PAIRS)))
    assert (suspected.id, suspected.category) == ("slow-node-link", "CHECK")


def test_what_the_budget_left_unmeasured_is_measured_longer() -> None:
    late = replace(NOT_MEASURED, reason="no complete round of 2 ranks", remarks=(because("budget-spent"),))
    found = judged(late)
    (cause,) = causes(found)
    assert (cause.id, cause.category) == ("undecided", "CHECK")
    assert cause.sentence.endswith("no complete round of 2 ranks; --ddp-budget ran out")
    (step,) = next_steps(cause, found, AGAIN)
    assert step.action == "measure longer"
    assert "--ddp-budget" not in step.command
    assert causes(judged(NOT_MEASURED))[0].id == "not-measured"


def test_whom_pairs_warn_of_is_a_suspect_where_a_collective_fails() -> None:
    slow = replace(GPU, slowdown=None, evidence="7 of its 7 pairs fail")
    (pairs,) = failed(1, slow, severity="warn", **PAIRS)
    busbw = replace(
        pairs,
        id="busbw_gbps[all-reduce-16gib-8gpu]",
        metric="busbw_gbps",
        workload="all-reduce-16gib",
        severity="fail",
        culprits=(),
    )
    found = judged(replace(pairs, id="pair_bandwidth_gbps[send-recv-256mib-node]"), busbw)
    (cause,) = causes(found)
    assert (cause.id, cause.category) == ("slow-communication", "CHECK")
    assert "look at GPU 3 (GPU-4f1c0b7a…) on node7: not certain" in cause.sentence
    assert next_steps(cause, found, AGAIN)[0].action == "look at node7: check NVLinks, PCIe and network ports"
    assert [one.category for one in warnings(found)] == ["MONITOR"]


def test_the_headline_has_the_largest_slowdown_of_a_device() -> None:
    one, other = failed(2, GPU)
    worse = replace(other, culprits=(replace(GPU, slowdown=1.31),))
    assert "is 1.31× slower" in headline(judged(one, worse))


def test_a_selection_is_told_once() -> None:
    whole = Blocker("run", "acceptance", "simulated: no machine was measured (3 passed; 90 not selected)")
    found = replace(judged(), reason=whole.reason, blockers=(whole,), not_selected=90, outcome="incomplete")
    assert headline(found).count("not selected") == 1
    assert "90 of 90 requirements not selected" in headline(replace(found, reason="", blockers=()))


def test_actions_do_not_say_whose_because_several_may_be_named() -> None:
    assert [kind.action for kind in CAUSES.values() if " its " in kind.action] == [
        CAUSES["regression"].action, CAUSES["requirement-not-met"].action, CAUSES["test-failed"].action,
    ]  # fmt: skip


def test_who_is_certainly_at_fault_is_drained_and_then_measured_again() -> None:
    found = judged(*failed(1, GPU))
    first, then = next_steps(causes(found)[0], found, AGAIN)
    assert first.action.startswith("drain node7; ")
    assert shlex.split(first.command) == ["ddpscale", "culprits", "my runs/one/judged-1"]
    assert shlex.split(then.command) == [*AGAIN.again, "-k", found.verdicts[0].id]


@pytest.mark.parametrize("number", [1, 3, 4])
def test_the_command_measures_all_that_the_cause_explains(number: int) -> None:
    found = judged(*failed(number, GPU), replace(RATIO, outcome="failed", culprits=(GPU,)))
    (one,) = causes(found)
    expression = Expression.compile(shlex.split(commands(found)[1])[-1])
    assert len(one.explains) == number + 1
    for name in one.explains:
        assert expression.evaluate(partial(_is_in, name)), name


def _is_in(name: str, word: str, /, **_: object) -> bool:
    return word in name


def test_a_suspect_is_looked_at_and_never_drained() -> None:
    found = judged(*failed(1, replace(GPU, is_certain=False)))
    (one,) = causes(found)
    assert one.category == "CHECK"
    assert next_steps(one, found, AGAIN)[0].action.startswith("look at node7: ")


def test_nothing_is_drained_for_what_an_unfinished_or_incomplete_run_found() -> None:
    for changes in ({"unfinished": True}, {"outcome": "incomplete"}):
        assert causes(judged(*failed(1, GPU), **changes))[0].category == "CHECK"


def test_a_warning_is_to_be_watched() -> None:
    found = judged(*failed(1, GPU, severity="warn"), outcome="accepted")
    (one,) = warnings(found)
    assert (one.id, one.category, one.severity) == ("slow-gpu", "MONITOR", 5)
    assert [record.category for record in cause_records(found, AGAIN)] == ["MONITOR"]


def test_an_interrupted_run_is_resumed_as_it_was_selected() -> None:
    many = [replace(NOT_MEASURED, id=f"one[{i}]", reason=f"interrupted in study {i}") for i in range(16)]
    typed = ("-k", "one or two", "--ddp-world-sizes=1,2", "-mgpu", "-kone")
    run = structs.replace(AGAIN, argv=("/bin/pytest", *typed, "-v"))
    found = judged(*many, outcome="incomplete", unfinished=True)
    (one,) = causes(found)
    assert (one.id, one.sentence) == ("interrupted", "measuring was interrupted: 16 requirements not measured")
    (step,) = next_steps(one, found, run)
    assert shlex.split(step.command) == [*AGAIN.again, *typed, "--ddp-resume=my runs/one"]


def test_what_is_undecided_is_measured_longer_and_without_a_budget() -> None:
    undecided = replace(FAILED, outcome="inconclusive", culprits=(), rounds=32)
    (longer,) = commands(judged(undecided, outcome="incomplete"))
    assert shlex.split(longer) == ["pytest", "--gpu-sku=b200", "acceptance", "--ddp-rounds=64", "-k", FAILED.id]


def test_what_is_undecided_on_a_busy_machine_is_measured_once_it_is_idle() -> None:
    found = judged(replace(FAILED, outcome="inconclusive", culprits=(), rounds=32), outcome="incomplete")
    for load, begins in (
        ((7.5, 4), "load average 7.5 on 4 cores: wait until the machine is idle"),
        ((3.5, 4), "measu"),
    ):
        (step,) = next_steps(causes(found)[0], found, structs.replace(AGAIN, load=load))
        assert step.action.startswith(begins)
        assert ("--ddp-rounds" in step.command) == (load[0] < 4)


def test_nothing_is_measured_again_of_a_run_that_this_program_did_not_measure() -> None:
    found = judged(*failed(1, GPU))
    imported, simulated = (structs.replace(AGAIN, status=status) for status in ("imported", "simulated"))
    assert commands(found, imported) == commands(found, None) == [""]
    assert commands(found, simulated) == ["ddpscale culprits --rehearse 'my runs/one/judged-1'"]


def test_the_only_node_is_no_suspect() -> None:
    metric = {"metric": "weak_scaling_efficiency", "bound": {"at_least": 0.96}, "value": 0.9, "interval": None}
    weak = failed(1, node("vm", is_certain=False), **metric)
    alone = Coverage((NodeCoverage("vm", (), "", ()),))
    assert headline(judged(*weak, coverage=alone)).endswith("; no device is named for it")
    assert "look at node vm" in headline(judged(*weak))
