"""--ddp-judge: what is there is judged, and what is broken is refused and left as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.results.paik import import_paik
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.plugin.site import (
    REQUIREMENTS,
    WEAK_8,
    Site,
    assert_no_crash,
    assert_refused,
    contents,
    edit_json,
    output_of,
    thresholds_with,
)

PUBLISHED = Path(__file__).parents[1] / "data" / "paik_a100_80gb"
ALL = len(REQUIREMENTS)
NOT_IN_THE_FILES = {
    "rank_uniformity", "exposed_communication", "ddp_overhead", "step_time_p95", "model_flops_utilization",
    "replica_agreement", "images_per_joule",
}  # fmt: skip


class TestRefused:
    def assert_refused_untouched(self, site: Site, *parts: str) -> None:
        before = contents(site.path / "measured")
        assert_refused(site.judge(), *parts)
        assert contents(site.path / "measured") == before
        assert not (site.path / "ddpscale-runs").exists()

    def test_a_directory_that_is_not_there(self, site: Site) -> None:
        assert_refused(site.judge(run="nowhere"), "ERROR: nowhere: has no run.json; expected a run directory")
        assert not (site.path / "nowhere").exists()

    def test_a_file(self, site: Site) -> None:
        assert_refused(site.judge(run="thresholds.yaml"), "thresholds.yaml: has no run.json")

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("run.json", ""),
            ("plan.json", '{"schema_version": 5, "studies": 3}'),
        ],
    )
    def test_a_broken_file(self, site: Site, name: str, content: str) -> None:
        run = site.measured()
        (run.path / name).write_text(content, encoding="utf-8")
        self.assert_refused_untouched(site, f"ERROR: measured/{name}: ", "Restore it from a copy, or measure again.")

    @pytest.mark.parametrize(
        ("name", "version", "expected", "what_next"),
        [("run.json", 1, 2, "measure, import or simulate again"), ("plan.json", 6, 5, "upgrade")],
    )
    def test_another_schema(self, site: Site, name: str, version: int, expected: int, what_next: str) -> None:
        run = site.measured()
        edit_json(run.path / name, schema_version=version)
        self.assert_refused_untouched(
            site, f"measured/{name}: has schema_version {version}; expected {expected}", what_next
        )

    def test_a_measurement_with_an_impossible_value(self, site: Site) -> None:
        run = site.measured()
        lines = run.measurements_jsonl.read_text(encoding="utf-8").splitlines()
        lines[41] = json.dumps(json.loads(lines[41]) | {"block_s": -1.0})
        run.measurements_jsonl.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.assert_refused_untouched(site, "measured/measurements.jsonl: line 42 is not a record")


def test_a_torn_last_line_is_left_out(site: Site) -> None:
    """What a kill leaves behind: every finished measurement counts."""
    run = site.measured()
    with run.measurements_jsonl.open("a", encoding="utf-8") as file:
        file.write('{"kind":"measurement","study":"weak/resn')
    torn = run.measurements_jsonl.read_bytes()
    result = site.judge()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=ALL)
    assert run.measurements_jsonl.read_bytes() == torn


def test_a_run_that_was_killed_before_its_first_measurement_is_not_measured(site: Site) -> None:
    run = site.measured()
    run.measurements_jsonl.unlink()
    result = site.judge()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert_no_crash(result)
    result.assert_outcomes(failed=ALL)
    assert site.outcome() == "incomplete"


def test_judging_keeps_the_runs_record_and_judging_again_the_first_verdicts(site: Site) -> None:
    run = site.measured()
    measured = contents(run.path)
    result = site.judge()
    assert result.ret == pytest.ExitCode.OK
    assert f"ddpscale judges by {site.thresholds}; evidence from measured (no new measurement)" in result.outlines
    first = contents(run.path)
    assert first.items() >= measured.items()
    site.write("thresholds.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 1.1"))
    assert site.judge().ret == pytest.ExitCode.TESTS_FAILED
    assert site.judge().ret == pytest.ExitCode.TESTS_FAILED
    after = contents(run.path)
    assert {name: after[name] for name in first} == first
    assert site.outcome() == "accepted"
    assert site.outcome("measured/judged-1") == site.outcome("measured/judged-2") == "rejected"


def test_a_run_elsewhere_is_judged(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With a space in its name, and from another directory."""
    elsewhere = tmp_path_factory.mktemp("other machine")
    site.measured().path.rename(elsewhere / "run 1")
    result = site.judge(run=str(elsewhere / "run 1"))
    assert result.ret == pytest.ExitCode.OK
    assert site.outcome(str(elsewhere / "run 1")) == "accepted"


def test_published_a100_results_give_the_published_figures(site: Site) -> None:
    """The 24 files of willgpaik/pytorch-ddp-scaling-benchmark, judged by the thresholds that are shipped."""
    shipped = Path(__file__).parents[2] / "thresholds.yaml"
    import_paik(PUBLISHED, site.path / "a100", None, load_thresholds(shipped).thresholds)
    result = site.judge(f"--thresholds={shipped}", run="a100")
    assert_no_crash(result)
    verdicts = {verdict["id"]: verdict for verdict in site.verdicts("a100")["verdicts"]}
    published = {
        "weak_scaling_efficiency[resnet152-fp16-8gpu]": (0.974, 0.001),
        "weak_scaling_efficiency[vit-b-16-fp16-8gpu]": (0.980, 0.001),
        "weak_scaling_efficiency[resnet152-bf16-8gpu]": (0.985, 0.001),
        "weak_scaling_efficiency[vit-b-16-bf16-8gpu]": (0.989, 0.001),
        "strong_scaling_speedup[resnet152-fp16-8gpu]": (2.07, 0.005),
        "strong_scaling_speedup[resnet152-bf16-8gpu]": (2.55, 0.005),
        "strong_scaling_speedup[vit-b-16-fp16-8gpu]": (6.56, 0.005),
        "strong_scaling_speedup[vit-b-16-bf16-8gpu]": (6.42, 0.005),
        "generation_ratio[resnet152-fp16-1gpu-vs-v100-sxm2-16gb]": (2.365, 0.006),
        "generation_ratio[vit-b-16-fp16-1gpu-vs-v100-sxm2-16gb]": (2.70, 0.005),
        "throughput_per_gpu[resnet152-fp16-1gpu]": (1189.5, 0.1),
    }
    for name, (value, tolerance) in published.items():
        assert verdicts[name]["value"] == pytest.approx(value, abs=tolerance), name
    measured = [verdict for verdict in verdicts.values() if verdict["value"] is not None]
    assert {verdict["outcome"] for verdict in measured if verdict["severity"] == "fail"} == {"passed"}
    # ResNet-152 at 32 images a GPU waits for its host, and says nothing about the GPUs.
    warned = [verdict for verdict in measured if verdict["severity"] == "warn" and verdict["outcome"] != "passed"]
    assert {verdict["metric"].partition("_")[0] for verdict in warned} == {"strong"}
    assert {verdict["outcome"] for verdict in warned} == {"inconclusive"}
    assert all(verdict["reason"].startswith("host-bound: ") for verdict in warned)
    # Nobody published ResNet-50 in these files, nor single steps, arms without communication, checksums or energy:
    # what was not measured is not accepted.
    missing = {name: verdict for name, verdict in verdicts.items() if verdict["outcome"] == "not_measured"}
    assert {verdict["metric"] for name, verdict in missing.items() if "resnet152" in name} == NOT_IN_THE_FILES
    untrained = {name for name, verdict in verdicts.items() if METRICS[verdict["metric"]].subject != "workload"}
    assert untrained
    assert untrained < set(missing)
    assert all("resnet50" in name or "resnet101" in name or "resnet152" in name for name in set(missing) - untrained)
    assert verdicts["step_time_cv[resnet152-fp16-8gpu]"]["value"] == pytest.approx(0.0062, abs=0.0001)
    assert verdicts["memory_spread[resnet152-fp16-8gpu]"]["value"] == 0
    assert site.outcome("a100") == "incomplete"
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "note: single samples: intervals come from the step-time standard deviation" in output_of(result)
