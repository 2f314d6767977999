"""The command `ddpscale`, as a person types it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddpscale import cli
from tests.report.judged import failed, write_judged_run
from tests.rows import rows

DATA = Path(__file__).parent / "data" / "paik_a100_80gb"


def ddpscale(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from pytest_ddpscale.cli import main; sys.exit(main())"]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=120, check=False
    )


def assert_user_error(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 4
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_init_copies_what_a_site_edits(tmp_path: Path) -> None:
    result = ddpscale("init", tmp_path / "site")
    assert result.returncode == 0
    assert "pytest --gpu-sku=cpu" in result.stdout
    names = {path.name for path in (tmp_path / "site").iterdir()}
    assert names == {"acceptance", "slurm", "thresholds.schema.json", "thresholds.yaml"}
    assert (tmp_path / "site" / "acceptance" / "test_scaling.py").is_file()


def test_what_the_outputs_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_judged_run(tmp_path / os.fsdecode("naïve-".encode() + b"\xff"), "rejected", ["n1"], [failed()])
    for encoding, name in (
        ("ascii", r"na\xefve-\ufffd"),
        ("latin-1", r"naïve-\ufffd"),
        ("utf-8", "naïve-\N{REPLACEMENT CHARACTER}"),
    ):
        printed = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding=encoding, write_through=True))
        assert cli.main(["runs", str(tmp_path)]) == 0
        assert name in printed.getvalue().decode(encoding)


def test_init_never_overwrites_a_site(tmp_path: Path) -> None:
    (tmp_path / "thresholds.yaml").write_text("mine")
    assert_user_error(ddpscale("init", tmp_path), "already has thresholds.yaml", "Nothing was copied")
    assert (tmp_path / "thresholds.yaml").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["thresholds.yaml"]


def test_thresholds_check_counts_what_is_backed(tmp_path: Path) -> None:
    ddpscale("init", tmp_path / "site")
    result = ddpscale("thresholds", "check", tmp_path / "site" / "thresholds.yaml")
    assert result.returncode == 0
    assert "valid, 17 SKUs" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["SKU", "also", "published", "site's", "provisional", "checks", "description"] in rows
    assert ["cpu", "27", "0", "2", "3"] in [row[:5] for row in rows]


def test_thresholds_check_points_at_the_line(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.yaml"
    file.write_text("schema_version: 2\nskus:\n  x:\n    description: y\n    detects: {device: cpu}\n")
    result = ddpscale("thresholds", "check", file)
    assert result.returncode == 4
    assert f"{file}:" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_schema_is_printed_as_json() -> None:
    assert json.loads(ddpscale("thresholds", "schema").stdout)["title"] == "pytest-ddpscale thresholds"


def test_published_results_are_imported_and_judged_and_reported(tmp_path: Path) -> None:
    run = tmp_path / "a100"
    imported = ddpscale("import", "paik", DATA, "--out", run)
    assert imported.returncode == 0
    assert f"--ddp-judge={run}" in imported.stdout
    judged = subprocess.run(
        [sys.executable, "-m", "pytest", f"--ddp-judge={run}", "-q", "-p", "no:cacheprovider", "-k", "weak_scaling"],
        capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False,
    )  # fmt: skip
    assert "INCOMPLETE" in judged.stdout
    verdicts = {v["id"]: v for v in json.loads((run / "verdicts.json").read_text())["verdicts"]}
    assert verdicts["weak_scaling_efficiency[resnet152-fp16-8gpu]"]["value"] == pytest.approx(0.974, abs=0.001)
    assert verdicts["weak_scaling_efficiency[vit-b-16-fp16-8gpu]"]["value"] == pytest.approx(0.980, abs=0.001)
    (run / "report.md").unlink()
    reported = ddpscale("report", run)
    assert reported.returncode == 0
    assert "weak_scaling_efficiency" in reported.stdout
    assert (run / "report.md").is_file()


def test_importing_into_an_existing_run_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "a100"
    ddpscale("import", "paik", DATA, "--out", run)
    assert_user_error(ddpscale("import", "paik", DATA, "--out", run), "already holds a run")


@pytest.mark.parametrize("command", [["report"], ["culprits"], ["compare", "."]])
def test_what_was_never_judged_is_refused(command: list[str], tmp_path: Path) -> None:
    run = tmp_path / "a100"
    ddpscale("import", "paik", DATA, "--out", run)
    command = [str(run) if word == "." else word for word in command]
    assert_user_error(ddpscale(*command, run), "was never judged", f"--ddp-judge={run}")


def test_verdicts_that_lie_in_another_directory_are_reported_with_their_culprits(tmp_path: Path) -> None:
    run, judged = tmp_path / "run", tmp_path / "run" / "judged-1"
    assert ddpscale("simulate", "--gpu-sku=a100", "--gpus=8", "--fault=slow-gpu:3:1.2", "--out", run).returncode == 0
    judging = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--ddp-judge={run}", "--gpu-sku=a100"]
    for directory in (run, judged):
        subprocess.run([*judging, "-k", "throughput_per_gpu"], cwd=tmp_path, timeout=120, check=False)
        assert (directory / "verdicts.json").is_file()
    (judged / "report.md").unlink()
    assert "REJECTED" in ddpscale("report", judged).stdout
    assert (judged / "report.md").is_file()
    assert f"SIMULATED: no machine was measured [{judged}]" in ddpscale("culprits", judged).stdout
    (run / "measurements.jsonl").write_text("")
    assert_user_error(ddpscale("report", judged), "holds verdicts on", "has changed", f"--ddp-judge={run}")


def test_a_file_where_the_site_should_go_is_a_sentence_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "site").write_text("a file")
    assert_user_error(ddpscale("init", tmp_path / "site"), "site")


def test_culprits_of_readable_runs_are_told_beside_one_that_is_not(tmp_path: Path) -> None:
    rejected = write_judged_run(tmp_path / "rejected", "rejected", ["n2"], [failed()])
    result = ddpscale("culprits", "--format=tsv", tmp_path / "nowhere", rejected)
    assert_user_error(result, "nowhere", "does not exist")
    header, finding = result.stdout.splitlines()
    assert header.startswith("use\thost\t")
    assert finding.startswith("drain\tn2\t")


def test_a_cause_is_explained() -> None:
    told, unknown = ddpscale("explain", "slow-gpu"), ddpscale("explain", "slowgpu")
    assert told.stdout.startswith("slow-gpu, severity 5 of 6, ISOLATE: check power cap")
    assert "A job that nobody noticed looks the same" in " ".join(told.stdout.split())
    assert (unknown.returncode, "Did you mean 'slow-gpu'?" in unknown.stderr) == (4, True)


def test_culprits_are_told_to_a_person(tmp_path: Path) -> None:
    result = ddpscale("culprits", write_judged_run(tmp_path / "rejected", "rejected", ["n2"], [failed()]))
    assert result.returncode == 0
    assert result.stdout.startswith("n2: rejected: weak_scaling_efficiency")


def test_init_copies_job_scripts_that_can_be_executed(tmp_path: Path) -> None:
    ddpscale("init", tmp_path / "site")
    scripts = {path.name: path for path in (tmp_path / "site" / "slurm").iterdir()}
    assert {"acceptance.sbatch", "nightly_health.sbatch", "scrontab.example"} <= set(scripts)
    assert {name for name, path in scripts.items() if not os.access(path, os.X_OK)} == {"scrontab.example"}


def offered(line: str) -> set[str]:
    """The words that a shell offers at the end of the line: asked as argcomplete's function in bash asks."""
    script = "import os, sys; sys.argv[0] = 'ddpscale'; from pytest_ddpscale.cli import main; main()"
    # argcomplete answers on file descriptor 8, words apart by IFS.
    read, write = os.pipe()
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "bash",
        "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
    }  # fmt: skip
    with os.fdopen(read) as answer:
        shell = f'exec {sys.executable} -c "{script}" 8>&{write} 9>/dev/null'
        subprocess.run(["bash", "-c", shell], env=os.environ | asked, pass_fds=[write], timeout=60, check=False)
        os.close(write)
        return {word.strip() for word in answer.read().split("\n")}


@rows(
    ("line", "words"),
    [
        ("ddpscale ru", {"runs"}),
        ("ddpscale suite inf", {"inference"}),
        ("ddpscale history --gpu-sku b200", {"b200", "b200-sxm-180gb"}),
        ("ddpscale culprits --format ", {"text", "tsv"}),
    ],
)
def test_a_shell_offers(line: str, words: set[str]) -> None:
    assert words <= offered(line)


def test_global_completion_knows_the_command() -> None:
    # argcomplete reads no further
    assert "PYTHON_ARGCOMPLETE_OK" in Path(cli.__file__).read_text(encoding="utf-8")[:1024]
