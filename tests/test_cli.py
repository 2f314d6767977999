"""The command `ddpscale`, as a person types it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpscale import cli
from tests.report.judged import failed, write_judged_run
from tests.rows import rows

DATA = Path(__file__).parent / "data" / "paik_a100_80gb"


Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Exit code, output and errors of a command that is typed in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return cli.main(line.split()), *capsys.readouterr()

    return run


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


def test_init_copies_what_a_site_edits_and_never_overwrites(typed: Typed, tmp_path: Path) -> None:
    code, said, _ = typed("init site")
    assert (code, "pytest --gpu-sku=cpu" in said) == (0, True)
    assert (tmp_path / "site" / "acceptance" / "test_scaling.py").is_file()
    scripts = {path.name: path for path in (tmp_path / "site" / "slurm").iterdir()}
    assert {"acceptance.sbatch", "nightly_health.sbatch", "scrontab.example"} <= set(scripts)
    assert {name for name, path in scripts.items() if not os.access(path, os.X_OK)} == {"scrontab.example"}
    lines = typed("thresholds check site/thresholds.yaml")[1].splitlines()
    assert ["SKU", "also", "published", "site's", "provisional", "checks", "description"] in map(str.split, lines)
    assert ["cpu", "27", "0", "2", "3"] in [line.split()[:5] for line in lines]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thresholds.yaml").write_text("mine")
    (tmp_path / "file").write_text("a file")
    for place, words in (("mine", "already has thresholds.yaml"), ("file", "file")):
        code, _, said = typed(f"init {place}")
        assert (code, words in said) == (4, True)
    assert (tmp_path / "mine" / "thresholds.yaml").read_text() == "mine"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thresholds.yaml"]


def test_thresholds_are_checked_line_by_line_and_have_a_schema(typed: Typed, tmp_path: Path) -> None:
    text = "schema_version: 2\nskus:\n  x:\n    description: y\n    detects: {device: cpu}\n"
    (tmp_path / "thresholds.yaml").write_text(text)
    code, _, said = typed("thresholds check thresholds.yaml")
    assert (code, "thresholds.yaml:" in said) == (4, True)
    assert json.loads(typed("thresholds schema")[1])["title"] == "pytest-ddpscale thresholds"


def test_published_results_are_imported_once_and_have_to_be_judged(typed: Typed) -> None:
    code, said, _ = typed(f"import paik {DATA} --out a100")
    assert (code, said.endswith("Next: pytest --ddp-judge=a100\n")) == (0, True)
    assert "already holds a run" in typed(f"import paik {DATA} --out a100")[2]
    for command in ("report", "culprits", "compare a100"):
        code, _, said = typed(f"{command} a100")
        assert (code, "was never judged" in said, "--ddp-judge=a100" in said) == (4, True, True)


def test_verdicts_that_lie_in_another_directory_are_reported_with_their_culprits(typed: Typed, tmp_path: Path) -> None:
    run, judged = tmp_path / "run", tmp_path / "run" / "judged-1"
    assert typed("simulate --gpu-sku=a100 --gpus=8 --fault=slow-gpu:3:1.2 --out run")[0] == 0
    judging = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--ddp-judge=run", "--gpu-sku=a100"]
    for directory in (run, judged):
        subprocess.run([*judging, "-k", "throughput_per_gpu"], cwd=tmp_path, timeout=120, check=False)
        assert (directory / "verdicts.json").is_file()
    (judged / "report.md").unlink()
    assert "REJECTED" in typed("report run/judged-1")[1]
    assert (judged / "report.md").is_file()
    assert "SIMULATED: no machine was measured [run/judged-1]" in typed("culprits run/judged-1")[1]
    (run / "measurements.jsonl").write_text("")
    code, _, said = typed("report run/judged-1")
    assert code == 4
    assert re.search("holds verdicts on .* has changed.*--ddp-judge=run", said)


def test_culprits_of_readable_runs_are_told_beside_one_that_is_not(typed: Typed, tmp_path: Path) -> None:
    write_judged_run(tmp_path / "rejected", "rejected", ["n2"], [failed()])
    code, told, said = typed("culprits --format=tsv nowhere rejected")
    assert (code, said.startswith("ddpscale: nowhere: does not exist")) == (4, True)
    header, finding = told.splitlines()
    assert header.startswith("use\thost\t")
    assert finding.startswith("drain\tn2\t")
    code, told, _ = typed("culprits rejected")
    assert (code, told.startswith("n2: rejected: weak_scaling_efficiency")) == (0, True)


def test_a_cause_is_explained(typed: Typed) -> None:
    told, (code, _, unknown) = typed("explain slow-gpu")[1], typed("explain slowgpu")
    assert told.startswith("slow-gpu, severity 5 of 6, ISOLATE: check power cap")
    assert "A job that nobody noticed looks the same" in " ".join(told.split())
    assert (code, "Did you mean 'slow-gpu'?" in unknown) == (4, True)


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
