"""`ddpscale simulate`, as a person types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS

SHORT = ("--rounds", str(FEWEST_ROUNDS))


def simulate(out: Path, *arguments: str) -> int:
    return main(["simulate", "--gpu-sku=a100", "--workloads=resnet152-fp16", "--out", str(out), *arguments])


def plan_of(out: Path) -> dict[str, set[str]]:
    plan = json.loads((out / "plan.json").read_text())
    return {study["id"]: {f"{arm['kind']}@{arm['world_size']}" for arm in study["arms"]} for study in plan["studies"]}


def judged(run: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", f"--ddp-judge={run}", "-q", "-p", "no:cacheprovider", *arguments],
        capture_output=True, text=True, cwd=run.parent, timeout=300, check=False,
    )  # fmt: skip


def test_a_run_directory_is_made_and_the_next_step_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(tmp_path / "run", *SHORT, "--fault", "slow-gpu:3:1.2", "--fault", "drift:2") == 0
    said = capsys.readouterr().out
    assert "SIMULATED: no machine was measured" in said
    assert "slow-gpu:3:1.2, drift:2" in said
    assert f"pytest --ddp-judge={tmp_path / 'run'}" in said
    assert json.loads((tmp_path / "run" / "run.json").read_text())["simulated"] is True


def test_noise_that_is_asked_for_is_simulated_and_told(tmp_path: Path) -> None:
    asked = "--noise", "0.004", "--gpu-spread", "0.01", "--correlation", "0.5", "--hiccups", "0.05"
    assert simulate(tmp_path / "run", *SHORT, *asked) == 0
    model = json.loads((tmp_path / "run" / "run.json").read_text())["simulation"]["model"]
    told = {"round_sd": 0.004, "correlation": 0.5, "hiccup_share": 0.05, "hiccup_sds": 10.0}
    assert told.items() <= model["noise"].items()
    assert model["spread"]["gpu_sd"] == 0.01


def test_nodes_that_differ_are_the_same_with_every_seed_of_the_noise(tmp_path: Path) -> None:
    def slowest(out: str, *arguments: str) -> int:
        """The rank that computes longest in the first round."""
        asked = "--gpus", "16", "--node-spread", "0.05", "--gpu-spread", "0.02", *SHORT, *arguments
        assert simulate(tmp_path / out, *asked) == 0
        lines = map(json.loads, (tmp_path / out / "measurements.jsonl").read_text().splitlines())
        block = next(one for one in lines if (one["kind"], one.get("arm")) == ("timed", "matmul-fp16"))
        ranks: list[int] = block["ranks"]
        return max(zip(block["seconds"], ranks, strict=True))[1]

    first = slowest("one", "--seed", "1")
    assert first == slowest("two", "--seed", "2")
    assert {slowest(f"other-{seed}", "--nodes-seed", str(seed)) for seed in (1, 2, 3)} != {first}


@pytest.mark.parametrize(
    ("arguments", "arms"),
    [
        ((), {"ddp@8"}),
        (("--gpus", "32"), {"ddp@32", "each@32"}),
        (("--gpus", "32", "--world-sizes", "16,24"), {"ddp@16", "ddp@24"}),
    ],
)
def test_the_cluster_is_as_large_as_asked(arguments: tuple[str, ...], arms: set[str], tmp_path: Path) -> None:
    assert simulate(tmp_path / "run", *SHORT, *arguments) == 0
    assert arms <= plan_of(tmp_path / "run")["weak/resnet152-fp16"]


def test_a_sound_simulated_machine_keeps_everything_and_is_never_accepted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert simulate(run) == 0
    told = judged(run, "-k", "resnet152-fp16")
    assert told.returncode == 1
    assert "SIMULATED: no machine was measured" in told.stdout
    verdicts = json.loads((run / "verdicts.json").read_text())
    assert verdicts["outcome"] == "incomplete"
    assert "simulated" in verdicts["reason"]
    assert {v["outcome"] for v in verdicts["verdicts"] if v["severity"] == "fail"} == {"passed"}
    report = (run / "report.md").read_text()
    assert report.index("SIMULATED: no machine was measured") < report.index("## Causes")
    assert "Not to be signed: no machine was measured." in report
    assert (run / "plots" / "weak-efficiency.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fault", "slow-gpu:8:1.1"), ("--fault", "slow-gpu:8:1.1", "a rank from 0 to 7")),
        (("--rounds", "4"), ("--rounds", f"at least {FEWEST_ROUNDS}")),
        (("--hiccups", "2"), ("--hiccups: found 2",)),
        (("--seed", "-1"), ("--seed: found -1; expected a whole number from 0 up",)),
        (
            ("--gpus=8", "--gpus-per-node=99"),
            ("--gpus-per-node: found 99; expected at most the 8 GPUs of the cluster",),
        ),
        (("--world-sizes", "16"), ("--world-sizes", "found '16'", "1 to 8")),
        (("--world-sizes", "two"), ("--world-sizes", "found 'two'")),
        (("--thresholds", "/nowhere.yaml"), ("/nowhere.yaml",)),
    ],
)
def test_mistakes_are_sentences_and_leave_nothing_behind(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(tmp_path / "run", *arguments) == 4
    said = capsys.readouterr().err
    for word in words:
        assert word in said
    assert not (tmp_path / "run").exists()


def test_a_pair_of_nodes_without_one_of_them_is_not_measured(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert simulate(run, *SHORT, "--gpus=2", "--gpus-per-node=1", "--fault=missing-rank:1:0") == 0
    assert '"study":"pairs","reason":"error"' in (run / "measurements.jsonl").read_text()


def test_a_run_is_never_written_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(tmp_path / "run", *SHORT) == 0
    before = (tmp_path / "run" / "measurements.jsonl").read_bytes()
    assert simulate(tmp_path / "run", *SHORT, "--seed", "1") == 4
    assert "already holds a run" in capsys.readouterr().err
    assert (tmp_path / "run" / "measurements.jsonl").read_bytes() == before


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys; from pytest_ddpscale.cli import main\n"
        "try: main(['simulate', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'pydantic', 'yaml', 'torch', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "--gpu-sku" in done.stdout
