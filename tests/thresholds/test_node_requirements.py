"""Checks, probes and history in a thresholds file: what they become, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.thresholds.cases import NodeCase, cases_for, training_cases
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from tests.rows import rows
from tests.thresholds.conftest import DETECT, NEW_LINE, ONE_NODE, RATIO_LINE, VALID, Load, Refusal, changed

CHECKS_LINE, PROBE_LINE = NEW_LINE + 4, RATIO_LINE + 3
NODE = """\
    node: {pcie_generation: 4, nvlinks: 0, published: paper}
    checks: {gpus: fail, clock: warn}
"""
PROBE = "      - {busbw_gbps: {8: 100}, probe: all-reduce-32mib, published: paper}\n"
HISTORY = "      - {no_regression: 0.95, provisional: it repeats itself}\n"
FULL = changed(DETECT, DETECT + NODE) + PROBE + HISTORY


def probe_changed(old: str, new: str) -> str:
    """`FULL` with the probe's line changed."""
    return changed(PROBE, changed(old, new, PROBE), FULL)


def node_cases(file: ThresholdsFile) -> list[NodeCase]:
    return [case for case in cases_for(file, "new", ONE_NODE) if isinstance(case, NodeCase)]


def test_checks_come_first_then_the_lines_of_the_file(load: Load) -> None:
    assert [case.id for case in cases_for(load(FULL), "new", ONE_NODE)] == [
        "node_check[gpus]", "node_check[clock]", "weak_scaling_efficiency[r-8gpu]", "generation_ratio[r-1gpu-vs-old]",
        "busbw_gbps[all-reduce-32mib-8gpu]", "no_regression[node]",
    ]  # fmt: skip


def test_what_trains_is_told_from_what_does_not(load: Load) -> None:
    cases = cases_for(load(FULL), "new", ONE_NODE)
    assert [case.requirement.workload for case in training_cases(cases)] == ["r", "r"]
    assert [case.probe for case in node_cases(load(FULL))] == [None, None, Arm("all-reduce-32mib", 8), None]


def test_each_says_its_own_line(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    lines = [CHECKS_LINE, CHECKS_LINE, PROBE_LINE, PROBE_LINE + 1]
    assert [case.where for case in node_cases(load(FULL))] == [f"{path}:{line}" for line in lines]


def test_a_check_has_its_severity_and_its_meaning_and_is_kept_by_all_nodes(load: Load) -> None:
    gpus, clock = (case.requirement for case in node_cases(load(FULL))[:2])
    assert (gpus.severity, clock.severity) == ("fail", "warn")
    assert (gpus.bound, gpus.provisional) == (1, True), "nobody publishes that; nothing is accepted for it"
    assert NODE_CHECKS["gpus"].meaning in (gpus.source.reasoning or "")


def test_checks_may_be_a_line_of_their_own_and_come_first(load: Load) -> None:
    found = node_cases(load(FULL + "      - {check: [ecc, disk], severity: warn}\n"))[2:4]
    assert [(case.id, case.requirement.severity) for case in found] == [
        ("node_check[ecc]", "warn"), ("node_check[disk]", "warn"),
    ]  # fmt: skip


@rows(
    ("peak", "probe", "expected"),
    [
        ("bf16_tflops: 300", "matmul_tflops: 100, probe: matmul-bf16, margin: 5 %", 300),
        ("bf16_tflops: 300", "matmul_tflops: 100, probe: matmul-bf16-10240, margin: 5 %", 300),
        ("bf16_tflops: 300", "matmul_tflops: 100, probe: matmul-fp16, margin: 5 %", None),
        ("bf16_tflops: 300", "matmul_tflops: 100, probe: matmul-fp8, margin: 5 %", None),
        ("memory_bandwidth_gbps: 2000", "memory_bandwidth_gbps: 100, probe: memory-copy, margin: 5 %", 2000),
        ("link_bandwidth_gbps: 300", "busbw_gbps: {8: 100}, probe: all-reduce-1gib", None),
    ],
)
def test_a_probe_knows_the_peak_of_what_it_measures(peak: str, probe: str, expected: float | None, load: Load) -> None:
    sheet = f"    peak: {{{peak}, published: paper}}\n"
    text = probe_changed("busbw_gbps: {8: 100}, probe: all-reduce-32mib", probe).replace(DETECT, DETECT + sheet)
    assert [case.peak for case in node_cases(load(text)) if case.probe] == [expected]


@rows(
    ("old", "new", "complaint"),
    [
        ("probe: all-reduce-32mib, ", "", "busbw_gbps needs `probe: NAME`"),
        ("probe: all-reduce-32mib", "of: r", "busbw_gbps takes no `of: NAME`"),
        ("probe: all-reduce-32mib", "probe: all-reduce-32mib, of: r", "has both `of` and `probe`; expected one"),
        ("probe: all-reduce-32mib", "check: ecc, severity: fail", "unknown key skus.new.requirements[2]."),
        ("all-reduce-32mib", "all-reduce", "unknown probe 'all-reduce'; expected matmul-fp32|fp16|bf16|fp8, also with "
         "rows and columns such as -10240, memory-copy, host-to-device, device-to-host, or "
         "all-reduce|all-gather|reduce-scatter|broadcast|reduce|"
         "all-to-all|send-recv with a message size such as -32mib"),
        ("all-reduce-32mib", "send-recv-32mib", "send-recv-32mib does not measure busbw_gbps; "
         "expected all-reduce, all-gather, reduce-scatter, broadcast, reduce, all-to-all"),
        ("busbw_gbps: {8: 100}, probe: all-reduce-32mib", "matmul_tflops: 100, margin: 5 %, probe: memory-copy",
         "memory-copy does not measure matmul_tflops; expected matmul"),
        ("busbw_gbps: {8: 100}, probe: all-reduce-32mib", "matmul_tflops: 100, margin: 5 %, probe: matmul-bf16-1000",
         "matmul-bf16-1000 has matrices of 1000 rows and columns; expected a multiple of 16 from 512 to 65536. "
         "Write matmul-bf16-992, or matmul-bf16 for the default size"),
        ("all-reduce-32mib", "matmul-bf16", "matmul-bf16 runs on one device; expected world_size 1"),
        ("8: 100", "1: 100", "all-reduce-32mib needs at least 2 ranks"),
        ("published", "placement: spread, published", "busbw_gbps does not depend on placement; "
         "expected no `placement: spread`"),
        ("published", "versus: old, published", "busbw_gbps takes no `versus: SKU`"),
        ("busbw_gbps: {8: 100}", "weak_scaling_efficiency: {8: 0.9}, margin: 5 %",
         "weak_scaling_efficiency needs `of: NAME`"),
        ("busbw_gbps: {8: 100}, probe: all-reduce-32mib, published: paper", "node_check: {8: 1}", "key 'node_check'"),
        ("busbw_gbps: {8: 100}, probe: all-reduce-32mib, published: paper", "check: ram, severity: fail",
         "there is no check 'ram'; expected some of gpus, processes, mig, ecc, throttling, pcie, nvlink, topology, "
         "versions, kernels, bf16, disk, clock, transport, ecc_under_load, throttling_under_load, pcie_under_load"),
        ("busbw_gbps: {8: 100}, probe: all-reduce-32mib, published: paper", "check: ecc, throughput_per_gpu: {1: 5}, "
         "severity: fail", "unknown key skus.new.requirements[2].throughput_per_gpu"),
        ("busbw_gbps: {8: 100}, probe: all-reduce-32mib, published: paper",
         "no_regression: 0.9, of: r, provisional: it repeats itself", "no_regression takes no `of: NAME`"),
        ("busbw_gbps: {8: 100}, probe: all-reduce-32mib, published: paper",
         "no_regression: {8: 0.9}, provisional: it repeats itself", "no_regression is about whole nodes"),
    ],
)  # fmt: skip
def test_a_line_that_asks_for_nothing_sound_is_refused(old: str, new: str, complaint: str, refusal: Refusal) -> None:
    line, message = refusal(probe_changed(old, new))
    assert complaint in message
    assert line == PROBE_LINE
    assert "ddpscale thresholds check" in message, "what to do"


@rows(
    ("old", "new", "line", "complaint"),
    [
        ("gpus: fail", "gpu: fail", CHECKS_LINE, "skus.new.checks: there is no check 'gpu'; did you mean 'gpus'?"),
        ("gpus: fail", "gpus: error", CHECKS_LINE, "skus.new.checks.gpus is 'error'; expected 'fail' or 'warn'"),
        ("gpus: fail", "gpus: true", CHECKS_LINE, "skus.new.checks.gpus is True; expected 'fail' or 'warn'"),
        ("checks: {gpus: fail, clock: warn}", "checks: [gpus]", CHECKS_LINE, "skus.new.checks is ['gpus']; expected a"),
        ("pcie_generation: 4", "pcie_gen: 4", CHECKS_LINE - 1, "unknown key skus.new.node.pcie_gen; did you mean"),
        ("pcie_generation: 4", "pcie_generation: 40", CHECKS_LINE - 1, "skus.new.node.pcie_generation is 40"),
        ("nvlinks: 0", "nvlinks: many", CHECKS_LINE - 1, "skus.new.node.nvlinks is 'many'"),
        ("nvlinks: 0, published: paper", "nvlinks: 0, published: sheet", CHECKS_LINE - 1, "there is no 'sheet' under"),
    ],
)
def test_a_node_or_a_check_that_is_not_understood_is_refused(
    old: str, new: str, line: int, complaint: str, refusal: Refusal
) -> None:
    assert FULL.count(old) == 1
    named, message = refusal(FULL.replace(old, new))
    assert complaint in message
    assert named == line


def test_a_probe_that_is_required_twice_is_refused(refusal: Refusal) -> None:
    line, message = refusal(FULL + PROBE.replace("published: paper", "published: paper, margin: 10 %"))
    assert line == PROBE_LINE + 2
    assert "busbw_gbps of all-reduce-32mib at world size 8 is required twice: 95 and 90" in message


def test_a_probe_of_another_size_is_another_requirement(load: Load) -> None:
    names = [case.name for case in node_cases(load(FULL + PROBE.replace("32mib", "1gib"))) if case.probe]
    assert names == ["all-reduce-32mib-8gpu", "all-reduce-1gib-8gpu"]


def test_a_file_without_checks_asks_for_none(load: Load) -> None:
    assert node_cases(load(VALID)) == []


@rows(("check", "refused"), [("ecc", True), ("pcie_under_load", True), ("disk", False)])
def test_a_check_that_means_nothing_on_a_cpu_is_refused_there(
    check: str, refused: bool, load: Load, refusal: Refusal
) -> None:
    text = changed(DETECT, f"    detect: {{device: cpu}}\n    checks:\n      {check}: fail\n")
    if not refused:
        assert load(text).thresholds.skus["new"].checks == {check: "fail"}
        return
    line, message = refusal(text)
    assert line == NEW_LINE + 4
    assert f"check '{check}' does not apply without a GPU; expected some of gpus, versions, disk, clock" in message


def test_a_line_of_a_check_that_means_nothing_on_a_cpu_is_refused_there(refusal: Refusal) -> None:
    line = "      - {check: ecc, severity: fail}\n"
    found, message = refusal(changed(DETECT, "    detect: {device: cpu}\n") + line)
    assert found == RATIO_LINE + 1
    assert "check 'ecc' does not apply without a GPU" in message


@rows("gpus", ["0", "8.0", "'8'"])
def test_how_many_gpus_a_node_has_is_a_whole_number(gpus: str, load: Load, refusal: Refusal) -> None:
    node = "    node: {{gpus: {}}}\n"
    assert refusal(changed(DETECT, DETECT + node.format(gpus)))[0] == NEW_LINE + 3
    found = load(changed(DETECT, DETECT + node.format(8))).thresholds.skus["new"].node
    assert found is not None
    assert found.gpus == 8


def test_a_probe_of_all_nodes_has_the_word_in_its_name_and_as_many_ranks_as_there_are(load: Load) -> None:
    text = probe_changed("8: 100", "all: 100")
    assert [case.id for case in cases_for(load(text), "new", ONE_NODE) if "busbw" in case.id] == []
    (case,) = (case for case in cases_for(load(text), "new", Layout(4, 8)) if "busbw" in case.id)
    assert isinstance(case, NodeCase)
    assert (case.id, case.probe) == ("busbw_gbps[all-reduce-32mib-all]", Arm("all-reduce-32mib", 32))
    assert case.world_size == 32
