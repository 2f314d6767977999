"""Reports lead with the cause, each told once, and hide no failure that it does not explain."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.report.cause import causes, headline, warnings
from pytest_ddpscale.report.explain import explain, verdict_properties
from pytest_ddpscale.report.junit import render_junit
from pytest_ddpscale.report.terminal import table_lines
from pytest_ddpscale.report.words.reasons import said
from pytest_ddpscale.run.coverage import Coverage, GpuCoverage, NodeCoverage
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.verdicts import (
    WRONG_DATA,
    Blocker,
    Culprit,
    Judgement,
    RunOutcome,
    Verdict,
)
from tests.builders.culprits import gpu, link, node
from tests.builders.judgements import FAILED, HOSTILE, MEMORY, NOT_MEASURED, PASSED, hostile_judgement
from tests.report.written import ticket_of

GPU = gpu(evidence="1.20× the median of 7 peers", uuid="GPU-4f1c0b7a-77aa", slowdown=1.2, peers=7)
SLOW_GPU = "GPU 3 (GPU-4f1c0b7a…) on node7 is 1.20× slower than its 7 peers even without communication"
NODE = node("node7", "all 8 ranks slow", slowdown=1.31)
UNIFORMITY = replace(PASSED, id="rank_uniformity[a]", metric="rank_uniformity", bound={"at_most": 1.05}, value=1.01)
PRODUCTS = replace(
    PASSED, id="matmul_tflops[a]", metric="matmul_tflops", bound={"at_least": 900.0}, value=950.0, published=1000.0,
    interval=None,
)  # fmt: skip
STEPS = replace(PRODUCTS, id="step_time_p95[a]", metric="step_time_p95", bound={"at_most": 468.0}, published=446.0)
CHECKED = replace(PASSED, metric="node_check", world_size=1, outcome="failed", value=0.5, interval=(0.5, 0.5))
LINK = link("node7", "node9")


def _failed(name: str, *culprits: Culprit, **changes: object) -> Verdict:
    bad = replace(PASSED, id=name, outcome="failed", value=0.8, interval=(0.79, 0.81), reason="below the bound")
    return replace(bad, culprits=culprits, **changes)  # type: ignore[arg-type]


def _judged(*verdicts: Verdict, outcome: RunOutcome = "rejected", blockers: tuple[Blocker, ...] = ()) -> Judgement:
    return Judgement("b200", outcome, "why", verdicts, blockers=blockers)


def test_the_cause_that_explains_most_comes_first() -> None:
    other = gpu(index=4, slowdown=1.5)
    judged = _judged(_failed("one", other), _failed("two", GPU), _failed("three", GPU))
    assert [cause.explains for cause in causes(judged)] == [{"two", "three"}, {"one"}]
    assert headline(judged).endswith(" (2 of 3 failures; 1 more cause below)")


def test_causes_are_in_order_of_severity_whatever_they_explain() -> None:
    """Wrong data, uncorrected memory errors, a lost GPU, a link, a slow GPU."""

    checks = [replace(CHECKED, id=f"node_check[{name}]", workload=name) for name in ("ecc", "gpus")]
    judged = _judged(
        *(_failed(f"slow {number}", GPU) for number in range(9)),
        *(_failed(f"link {number}", LINK) for number in range(5)),
        replace(checks[1], culprits=(gpu(index=5),)),
        replace(checks[0], culprits=(gpu(index=6),)),
        _failed("wrong", gpu("node7", 7, "computed wrong data", "GPU-7", computed_wrong=True), flags=(WRONG_DATA,)),
    )
    found = causes(judged)
    assert [one.id for one in found] == ["wrong-data", "memory-errors", "lost-gpu", "slow-node-link", "slow-gpu"]
    assert [one.severity for one in found] == [1, 2, 3, 4, 5]
    assert [one.category for one in found] == ["ISOLATE", "ISOLATE", "ISOLATE", "CHECK", "ISOLATE"]
    assert headline(judged).startswith("REJECTED: wrong data: GPU 7 (GPU-7) on node7: computed wrong data (1 of ")


def test_a_node_that_misses_gpus_has_no_gpu_to_reset() -> None:
    for culprit in (node("node7"), node("node7", is_certain=False)):
        [cause] = causes(_judged(replace(CHECKED, id="node_check[gpus]", workload="gpus", culprits=(culprit,))))
        assert cause.id == "missing-gpus"


def test_a_failure_that_is_not_certain_of_a_device_is_a_cause_of_its_own() -> None:
    judged = _judged(_failed("one", GPU), _failed("two", replace(GPU, is_certain=False)))
    first, second = causes(judged)
    assert first.explains == {"one"}
    assert second.explains == {"two"}
    assert second.sentence.endswith("; look at GPU 3 (GPU-4f1c0b7a…) on node7: not certain to be the cause of it")


def test_a_node_whose_host_starves_its_gpus_is_told_with_what_to_look_at() -> None:
    starved = replace(node("node7", said(because("starved", 0.85)), is_certain=False), because=because("starved", 0.85))
    [single] = causes(_judged(_failed("one", starved, metric="device_utilization", bound={"at_least": 0.95})))
    [certain] = causes(_judged(_failed("one", replace(starved, is_certain=True))))
    told = "node node7: all GPUs wait for the host: 85 % busy; look at CPU clocks, NUMA binding and data loaders"
    assert (single.sentence, single.id) == (f"one is 80.0 %, bound ≥ 95.0 %; {told}", "host-bound")
    assert (certain.sentence, certain.id) == (told, "host-bound")


def test_a_slow_gpu_is_told_with_the_reading_that_shows_it() -> None:
    shown = because("at-clock", 640.0, 1410.0, 180.0, 400.0, ("sw_power_cap",))
    other = gpu(index=4, slowdown=1.1, shown=because("at-clock", 700.0, 1410.0, None, None, ()))
    first, second = causes(_judged(_failed("one", GPU), _failed("two", replace(GPU, shown=shown)), _failed("x", other)))
    assert first.sentence == f"{SLOW_GPU} (640 of 1,410 MHz, 180 of 400 W, sw_power_cap)"
    assert second.sentence.endswith(" (700 of 1,410 MHz)")


def test_a_slow_gpu_explains_its_node_where_one_slow_rank_can() -> None:
    on_node = replace(NODE, slowdown=None, evidence="81 % on this node alone")
    efficiency = _failed("efficiency", on_node)
    other = replace(MEMORY, id="memory", outcome="failed", value=75.0, culprits=(on_node,))
    found = causes(_judged(_failed("one", GPU), efficiency, other))
    assert [cause.explains for cause in found] == [{"one", "efficiency"}, {"memory"}]


def test_a_slow_gpu_explains_nothing_of_another_node() -> None:
    elsewhere = node("node9")
    assert len(causes(_judged(_failed("one", GPU), _failed("two", elsewhere)))) == 2


def test_wrong_data_is_told_before_speed() -> None:
    wrong = replace(GPU, evidence="computed wrong data in 8 of 8 rounds", slowdown=None, computed_wrong=True)
    judged = _judged(_failed("one", GPU), _failed("two", wrong, flags=(WRONG_DATA,)))
    assert headline(judged).startswith("REJECTED: wrong data: GPU 3 (GPU-4f1c0b7a…) on node7: computed wrong data")


def test_a_slow_gpu_beside_wrong_data_is_not_accused_of_it() -> None:
    wrong = gpu("node7", 4, "computed wrong data", "GPU-9", computed_wrong=True)
    judged = _judged(
        _failed("one", GPU), _failed("two", GPU), _failed("three", GPU, wrong, flags=(WRONG_DATA,))
    )  # fmt: skip
    said = headline(judged)
    assert said.startswith("REJECTED: wrong data: GPU 4 (GPU-9) on node7: computed wrong data")
    assert said.endswith(" (1 of 3 failures; 1 more cause below)")


def test_a_node_with_a_slowdown_of_its_own_is_not_explained_by_a_gpu() -> None:
    mild = replace(GPU, slowdown=1.05)
    said = headline(_judged(_failed("one", mild), _failed("two", NODE), _failed("three", NODE)))
    assert said.startswith("REJECTED: node node7 is 1.31× slower")
    assert said.endswith(" (2 of 3 failures; 1 more cause below)")


def test_a_uniform_loss_names_nobody_and_says_how_much() -> None:
    alike = tuple(node(f"node{i}", is_certain=False) for i in range(3))
    slow = replace(FAILED, value=900.0, published=1200.0, interval=(890.0, 910.0), culprits=alike)
    compared = replace(PASSED, id="rank_uniformity[a]", metric="rank_uniformity", bound={"at_most": 1.05}, value=1.01)
    said = headline(_judged(slow, compared))
    nobody = "every GPU is within 5.0 % of its peers, so no device is named"
    assert said == f"REJECTED: 25.0 % below the reference throughput; {nobody}"


def test_gpus_that_nobody_compared_are_not_said_to_be_alike() -> None:
    said = headline(_judged(replace(FAILED, value=900.0, published=1200.0, interval=(890.0, 910.0), culprits=())))
    assert said == "REJECTED: 25.0 % below the reference throughput; whether all GPUs are alike was not measured"


def test_a_gpu_that_is_missing_is_named_for_what_is_not_decided() -> None:
    undecided = replace(PASSED, outcome="inconclusive", reason="only 1 of 32 rounds are complete")
    missing = GpuCoverage(Place("node7", None, "GPU-4f1c", 3), rounds_missing=31, missing_in=(undecided.id,))
    other = GpuCoverage(Place("node7", None, "GPU-5", 4), rounds_missing=1)
    coverage = Coverage((NodeCoverage("node7", (), "", (missing, other)),))
    judged = replace(_judged(undecided, NOT_MEASURED, outcome="incomplete"), coverage=coverage)
    first, second = causes(judged)
    assert first.sentence == "GPU 3 (GPU-4f1c) on node7: not measured in 31 rounds of its peers"
    assert [one.is_certain for one in first.culprits] == [False], "no requirement failed for it"
    assert [first.explains, second.explains] == [{undecided.id}, {NOT_MEASURED.id}]


def _uniform(*others: Verdict) -> Judgement:
    slow = replace(FAILED, value=900.0, published=1200.0, interval=(890.0, 910.0), culprits=())
    return _judged(slow, replace(UNIFORMITY, outcome="passed"), *others)


def test_one_loss_of_all_gpus_is_one_cause_whatever_sees_it() -> None:
    nodes = tuple(node(f"node{i}", is_certain=False) for i in range(3))
    products = replace(PRODUCTS, outcome="failed", value=800.0, culprits=nodes)
    steps = replace(STEPS, outcome="failed", value=550.0)
    undecided = replace(PRODUCTS, id="matmul_tflops[b]", outcome="inconclusive", value=880.0)
    (told,) = causes(_uniform(products, steps, undecided))
    assert told.sentence.startswith("25.0 % below the reference throughput; every GPU is within")
    assert told.culprits == ()
    assert headline(_uniform(products, steps, undecided)).endswith(" (3 of 3 failures)")


def test_what_is_no_loss_of_computing_is_a_cause_beside_it() -> None:
    lost_together = _failed("weak_scaling_efficiency[b]")
    better = replace(PRODUCTS, outcome="inconclusive", value=1001.0, reason="the bound lies inside the interval")
    assert [len(one.explains) for one in causes(_uniform(lost_together, better))] == [1, 1, 1]


def test_gpus_are_not_said_to_be_alike_beside_a_slow_one() -> None:
    told = [one.sentence for one in causes(_uniform(_failed("weak_scaling_efficiency[b]", GPU)))]
    assert told == [SLOW_GPU, "25.0 % below the reference throughput, which no single device explains"]
    warned = replace(UNIFORMITY, id="rank_uniformity[b]", outcome="failed", severity="warn", value=1.2)
    (alone,) = causes(_uniform(warned))
    assert "alike" not in alone.sentence
    undecided = replace(UNIFORMITY, id="rank_uniformity[b]", outcome="inconclusive", severity="warn")
    assert causes(_uniform(undecided))[0].sentence.endswith("whether all GPUs are alike is undecided")


def test_metrics_of_one_thing_that_nobody_is_named_for_are_told_once() -> None:
    weak = [_failed(f"weak_scaling_efficiency[{i}]") for i in range(3)]
    strong = replace(weak[0], id="strong_scaling_efficiency[a]", metric="strong_scaling_efficiency", value=0.7)
    (told,) = causes(_judged(*weak, strong))
    assert told.sentence.startswith("strong_scaling_efficiency[a] is 70.0 %")
    assert told.sentence.endswith("(3 more like it); no device is named for it")


def test_a_gpu_that_is_slower_than_its_slow_node_is_told_with_it() -> None:
    (told,) = causes(_judged(_failed("one", NODE, replace(GPU, slowdown=1.52)), _failed("two", NODE)))
    assert told.sentence == (
        "node node7 is 1.31× slower than its peers even without communication, "
        "GPU 3 (GPU-4f1c0b7a…) on node7 even 1.52×"
    )
    assert [culprit.kind for culprit in told.culprits] == ["node", "gpu"]
    assert told.explains == {"one", "two"}


def test_a_slow_node_explains_what_is_undecided_because_of_it() -> None:
    """Relative to itself it scales well; and what would not be kept by a faster one either is told apart."""
    either = replace(NODE, is_certain=False)
    open_ = replace(PASSED, id="open", outcome="inconclusive", culprits=(either,), reason="slow by itself")
    far = replace(open_, id="far", value=0.3, reason="the bound lies inside the interval")
    judged = _judged(_failed("one", NODE), open_, far)
    assert [one.explains for one in causes(judged)] == [{"one", "open"}, {"far"}]
    assert headline(judged).endswith(" (1 of 1 failure; 1 more cause below)")


def test_who_only_misses_what_warns_is_told_of_a_machine_that_is_accepted() -> None:
    warned = [_failed(name, GPU, severity="warn") for name in ("one", "two")]
    said = headline(_judged(PASSED, *warned, outcome="accepted"))
    assert said == f"ACCEPTED: why; warning: {SLOW_GPU} (2 requirements that only warn)"


def test_a_device_that_misses_what_only_warns_is_told_where_no_cause_names_one() -> None:
    warned = _failed("warned", GPU, severity="warn")
    assert headline(_judged(_failed("one"), warned)).endswith(f"; warning: {SLOW_GPU} (1 requirement that only warns)")
    assert "warning" not in headline(_judged(_failed("one", NODE), warned))


def test_who_is_a_cause_is_no_warning_too() -> None:
    judged = _judged(_failed("one", GPU), _failed("two", GPU, severity="warn"), _failed("three", LINK, severity="warn"))
    (warned,) = warnings(judged)
    assert warned.culprits == (LINK,)


def test_a_slow_rank_is_never_told_as_a_uniform_loss() -> None:
    slow = replace(FAILED, published=1200.0, culprits=(replace(GPU, is_certain=False),))
    assert "alike" not in headline(_judged(slow))


def test_what_was_not_measured_is_told_once_and_after_failures() -> None:
    absent = [replace(NOT_MEASURED, id=f"{i}", reason="node9 was lost") for i in range(3)]
    found = causes(_judged(*absent, _failed("one")))
    assert [len(cause.explains) for cause in found] == [1, 3]
    assert found[1].sentence.endswith("node9 was lost")


def test_an_error_is_told_before_the_more_that_it_left_unmeasured() -> None:
    absent = [replace(NOT_MEASURED, id=f"{i}", reason="missing data") for i in range(3)]
    broken = replace(NOT_MEASURED, id="broken", outcome="error", reason="rank 2 failed: CUDA out of memory")
    assert [len(cause.explains) for cause in causes(_judged(*absent, broken))] == [1, 3]


def test_every_blocker_is_explained() -> None:
    verdicts = (_failed("one", GPU), _failed("two", LINK), _failed("three"), NOT_MEASURED, FAILED)
    judged = _judged(*verdicts, blockers=(Blocker("test", "test_fans", "failed"),))
    assert frozenset().union(*(cause.explains for cause in causes(judged))) == {b.name for b in judged.blockers}


def test_what_the_site_changed_is_never_left_out() -> None:
    judged = replace(_judged(_failed("one", GPU)), altered=("peak",))
    assert headline(judged).endswith("; changed by the site: peak")


def test_of_many_workloads_that_train_something_else_the_first_is_named_and_reports_list_all() -> None:
    altered = ("`detect`", *(f"what w{number} trains (batch_size 64 → 128)" for number in range(12)))
    judged = replace(_judged(_failed("one", GPU)), altered=altered)
    assert headline(judged).endswith(
        "; changed by the site: `detect`, what w0 trains (batch_size 64 → 128) and 11 more such workloads"
    )
    for lines in (ticket_of(judged), "\n".join(line for line, _ in table_lines(judged, 200))):
        assert all(f"what w{number} trains" in lines.replace("\\", "") for number in range(12))


def test_the_headline_ends_at_the_first_line_of_an_error_and_the_explanations_have_all() -> None:
    error = "rank 3 on n1 failed in warm-up: RuntimeError: CUDA error: no kernel\nCompile with DSA\nlast lines:\n  x"
    broken = replace(NOT_MEASURED, id="one", outcome="error", reason=error)
    judged = _judged(broken, outcome="incomplete")
    first, *details = error.split("\n")
    assert headline(judged) == f"INCOMPLETE: error: one: {first}"
    shown = [
        explain(broken, "thresholds.yaml:1", "pytest"),
        "\n".join(line for line, _ in table_lines(judged, 200)),
        ticket_of(judged),
        render_junit(judged),
        str(dict(verdict_properties(broken))),
    ]
    assert all(line.strip() in text for line in details for text in shown)


def test_a_check_that_fails_without_a_certain_culprit_says_what_was_found() -> None:
    found = "1 of 1 node not as expected: n1: GPU 0 (GPU-1): torch has no kernels for compute capability 7.0"
    suspect = replace(GPU, is_certain=False)
    one = replace(CHECKED, id="node_check[kernels]", workload="kernels", reason=found, culprits=(suspect,), value=0.0)
    [cause] = causes(_judged(one))
    assert cause.sentence == f"node_check[kernels]: {found}"
    assert cause.culprits == (suspect,)


def test_a_gpu_whose_error_ended_its_rank_comes_before_what_it_left_unknown() -> None:
    suspect = replace(GPU, slowdown=None, is_certain=False)
    silent = replace(NOT_MEASURED, id="node_check[transport]", metric="node_check", reason="missing data")
    broken = replace(NOT_MEASURED, id="one", outcome="error", reason="CUDA error", culprits=(suspect,))
    judged = _judged(silent, broken, outcome="incomplete")
    assert headline(judged).startswith("INCOMPLETE: error: one: CUDA error")
    assert causes(judged)[0].culprits == (suspect,)


def test_a_very_long_line_is_shortened_in_the_headline_alone() -> None:
    long = "rank 0 on n1 failed in warm-up: RuntimeError: " + "x" * 2000
    broken = replace(NOT_MEASURED, id="one", outcome="error", reason=long)
    assert len(headline(_judged(broken, outcome="incomplete"))) < 450
    assert long in explain(broken, "thresholds.yaml:1", "pytest")


def test_hostile_names_stay_one_printable_line() -> None:
    blocked = replace(hostile_judgement(), blockers=(Blocker("test", HOSTILE, HOSTILE),))
    assert all(cause.sentence.isprintable() for cause in causes(blocked))
    assert headline(blocked).isprintable()


def test_a_headline_is_cut_after_a_clause_and_keeps_who_and_how_much() -> None:
    long = "parameters differ (" + ", ".join(f"in bucket {i}" for i in range(60)) + "); gradients differ"
    wrong = replace(GPU, slowdown=None, computed_wrong=True, evidence=long)
    said = headline(replace(_judged(_failed("one", wrong, flags=(WRONG_DATA,)), _failed("two", GPU)), not_selected=7))
    start = "REJECTED: wrong data: GPU 3 (GPU-4f1c0b7a…) on node7: parameters differ … ("
    assert said.startswith(start)
    assert said.endswith("; 7 of 9 requirements not selected")
    assert len(said) <= 300
