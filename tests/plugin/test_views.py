"""What a judged run leaves behind: every view says the same, whatever a run holds, and published figures come out."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.suites.paik_import import import_paik
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.approved import FOLDER, assert_approved, masked, shape_of
from tests.plugin.site import Site, assert_no_crash, edit_json, output_of
from tests.plugin.steps import simulated
from tests.rows import rows
from tests.since import since

ROOT = Path(__file__).parents[2]
FAULTS = {
    "accepted": (), "slow-gpu": ("slow-gpu:3:1.06",), "two-faults": ("slow-gpu:3:1.06", "bad-gpu:9:ecc"),
    "missing-rank": ("missing-rank:5:2",),
}  # fmt: skip
# What the simulator writes of a machine, and what stands there of a real one: only those are accepted.
AS_IF_MEASURED = {"SIM-": "GPU-0000000", "simulated-": "node", "simulated tested-gpu": "Tested GPU"}


def test_the_terminal_and_files_for_programs_are_as_they_were_approved(site: Site) -> None:
    for name, faults in FAULTS.items():
        site.reset()
        gpus = 16 if name == "two-faults" else 8
        simulated((FOLDER / "thresholds.yaml").read_text("utf-8"), *faults, gpus=gpus, name=name)(site)
        run = site.path / name
        if name != "missing-rank":
            edit_json(run / "run.json", simulated=False, status="finished", simulation=None, notes=None)
            for file in (run / "run.json", run / "measurements.jsonl"):
                said = file.read_text("utf-8")
                for of_simulated, of_measured in AS_IF_MEASURED.items():
                    said = said.replace(of_simulated, of_measured)
                file.write_text(said, "utf-8")
        result = site.run(f"--ddp-judge={name}", f"--junitxml={name}.xml", "-p", "no:cacheprovider")
        assert_no_crash(result)
        assert result.ret == (name != "accepted")
        # How long it took to write the run differs with the load of the machine.
        printed = re.sub(r"\d\.\d min,", "0.0 min,", masked(result.stdout.str(), site.path))
        assert_approved(f"{name}.txt", printed)
        if name == "slow-gpu":
            xml = ElementTree.parse(run / "junit.xml").getroot()
            ElementTree.indent(xml)
            # Passed items, too, carry their numbers, in pytest's own JUnit XML as in all that reads properties.
            cases = ElementTree.parse(f"{name}.xml").getroot().iterfind(".//properties")
            properties = [{one.get("name"): one.get("value") for one in case} for case in cases]
            report, verdicts = (
                json.loads((run / file).read_text()) for file in ("pytest-report.json", "verdicts.json")
            )
            metrics, markdown = ((run / file).read_text("utf-8") for file in ("metrics.prom", "report.md"))
            for view, text in {
                "junit.xml": ElementTree.tostring(xml, encoding="unicode"),
                "properties.json": json.dumps(properties, indent=1),
                "pytest-report.json": json.dumps(report, indent=1), "metrics.prom": metrics,
                "verdicts-shape.json": json.dumps(shape_of(verdicts | {"requirements": []}), indent=1),
            }.items():  # fmt: skip
                assert_approved(view, masked(text, site.path))
            assert verdicts["basis"]["thresholds_path"] == str(site.thresholds)
            assert verdicts["basis"]["thresholds_sha256"] in markdown
            stamps = re.findall("last_verdict_timestamp_seconds{.*} (.*)", metrics)
            assert {*map(float, stamps)} == {
                datetime.fromisoformat(RunDirectory.open(run).read_run().finished_at or "").timestamp()
            }
            plots = {plot.name for plot in (run / "plots").glob("*.png")}
            assert plots >= set(re.findall(r"plots/([\w.-]+)", markdown)) != set()


def test_a_hostile_name_breaks_no_view(site: Site) -> None:
    simulated((FOLDER / "thresholds.yaml").read_text("utf-8"), *FAULTS["slow-gpu"], gpus=8)(site)
    run = site.path / "measured"
    hostile = json.dumps("node|<script>\x1b[31m`#\u202e\nACCEPTED\r\x9b\0")[1:-1]
    for file in (run / "run.json", run / "measurements.jsonl"):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('"simulated-0"', f'"{hostile}"'), encoding="utf-8")
    result = site.run("--ddp-judge=measured", "-rA")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert_no_crash(result)
    shown = output_of(result)
    assert "node|<script>�[31m`#� ACCEPTED" in shown
    assert not any(line.startswith("ACCEPTED") for line in shown.splitlines())
    for text in (shown, (run / "report.md").read_text(encoding="utf-8")):
        assert {character for character in text if not character.isprintable()} <= {"\n"}
    ElementTree.parse(run / "junit.xml")


@rows(
    ("what", "hook"),
    [
        ("KeyboardInterrupt", "collectstart(collector)"),
        ("KeyboardInterrupt", "pycollect_makeitem(collector, name, obj)"),
        ("pytest.exit.Exception('enough', 2)", "collectstart(collector)"),
    ],
)
@since("pytest", "8.2.1", "an interrupted collection ends the session")
def test_ctrl_c_during_collection_is_exit_2_and_leaves_no_run(site: Site, what: str, hook: str) -> None:
    raising = f"def pytest_{hook}:\n    if isinstance(collector, pytest.Module):\n        raise {what}"
    site.write("acceptance/conftest.py", f"import pytest\n\n{raising}")
    result = site.run("--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-run-dir=run")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "ERROR" not in output_of(result)
    assert not (site.path / "run").exists()


def test_published_a100_results_give_the_published_figures(site: Site) -> None:
    """The 24 files of willgpaik/pytorch-ddp-scaling-benchmark, judged by the thresholds that are shipped.

    ResNet-152 at 32 images a GPU waits for its host, and says nothing about the GPUs; of energy no error is known. What
    was not measured, as anything on ResNet-50 or between probes, is not accepted.
    """
    shipped = ROOT / "thresholds.yaml"
    import_paik(ROOT / "tests/data/paik_a100_80gb", site.path / "a100", None, load_thresholds(shipped).thresholds)
    result = site.run("--ddp-judge=a100", f"--thresholds={shipped}")
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    judged: Any = parse_strict_json((site.path / "a100/verdicts.json").read_text("utf-8"))
    found = {verdict["id"]: verdict for verdict in judged["verdicts"]}
    published = {
        "weak_scaling_efficiency[resnet152-fp16-8gpu]": 0.974, "weak_scaling_efficiency[vit-b-16-fp16-8gpu]": 0.980,
        "weak_scaling_efficiency[resnet152-bf16-8gpu]": 0.985, "weak_scaling_efficiency[vit-b-16-bf16-8gpu]": 0.989,
        "strong_scaling_speedup[resnet152-fp16-8gpu]": 2.07, "strong_scaling_speedup[resnet152-bf16-8gpu]": 2.55,
        "strong_scaling_speedup[vit-b-16-fp16-8gpu]": 6.56, "strong_scaling_speedup[vit-b-16-bf16-8gpu]": 6.42,
        "generation_ratio[resnet152-fp16-1gpu-vs-v100-sxm2-16gb]": 2.365,
        "generation_ratio[vit-b-16-fp16-1gpu-vs-v100-sxm2-16gb]": 2.70,
        "throughput_per_gpu[resnet152-fp16-1gpu]": 1189.5,
    }  # fmt: skip
    assert {name: found[name]["value"] for name in published} == pytest.approx(published, rel=0.0025)
    lines = [
        f"{one['severity']} {name}: {one['outcome']} {float(one['value'] or 0):.4g} {one['reason']}"
        for name, one in found.items()
        if one["metric"] != "node_check"
    ]
    assert {one["outcome"] for one in found.values() if one["metric"] == "node_check"} == {"not_measured"}
    assert_approved("paik-judged.txt", "\n".join([*lines, *judged["notes"], ""]))
