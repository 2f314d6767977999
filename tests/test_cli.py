"""The command `ddpscale`, as a person types it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddpscale import cli
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.approved import assert_approved, masked
from tests.plugin.site import edit_json
from tests.report.judged import failed, write_judged_run
from tests.rows import rows

DATA = Path(__file__).parent / "data" / "paik_a100_80gb"
# In a directory with a rejected run, which was judged again, a file, and somebody's thresholds.
TYPED = (
    "init site", "thresholds schema", "init mine", "init file",
    "thresholds check mine/thresholds.yaml", f"import paik {DATA} --out a100", f"import paik {DATA} --out a100",
    "report a100", "culprits a100", "compare a100 a100", "culprits --format=tsv nowhere rejected", "culprits rejected",
    "explain slow-gpu", "explain slowgpu", "report rejected/judged-1", "culprits rejected/judged-1", "runs",
)  # fmt: skip


def test_what_a_person_types_is_answered_as_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "100")
    run = write_judged_run(here / "rejected", "rejected", ["n2"], [failed()])
    RunDirectory.open(run).write_json(run / "plan.json", Plan("tested-gpu", "cuda", ()))
    basis = {"thresholds_path": "x", "thresholds_sha256": "x", "judged_at": "2026-01-31T12:00:00+00:00"}
    edit_json(run / "verdicts.json", basis=basis | RunDirectory.open(run).digests())
    (run / "judged-1").mkdir()
    shutil.copy(run / "verdicts.json", run / "judged-1")
    Path("file").touch()
    Path("mine").mkdir()
    Path("mine/thresholds.yaml").write_text("skus:\n  x:\n    detects: {device: cpu}\n")
    said = list[str]()

    def typed(line: str) -> None:
        code, (told, refused) = cli.main(line.split()), capsys.readouterr()
        shown = told.splitlines() if code or len(told) < 2000 else told.splitlines()[-1:]
        said.extend([f"$ ddpscale {line}: {code}", *shown, refused])

    for line in TYPED:
        typed(line)
    (run / "measurements.jsonl").write_text("")
    typed("report rejected/judged-1")
    said += [str(path) for path in sorted(Path().glob("**/*")) if path.suffix != ".png" and "a100" not in str(path)]
    said += [
        "may be started:",
        *(path.name for path in sorted(Path("site/slurm").iterdir()) if os.access(path, os.X_OK)),
    ]
    assert_approved("typed.txt", masked("\n".join(said).replace(str(DATA), "DATA"), here, DATA.parents[2]))


def test_what_the_outputs_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_judged_run(tmp_path / os.fsdecode("naïve-".encode() + b"\xff"), "rejected", ["n1"], [failed()])
    for encoding, name in {"ascii": r"na\xefve-\ufffd", "latin-1": r"naïve-\ufffd", "utf-8": "naïve-\ufffd"}.items():
        printed = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding=encoding, write_through=True))
        assert cli.main(["runs", str(tmp_path)]) == 0
        assert name in printed.getvalue().decode(encoding)


@rows(
    ("line", "words"),
    [
        ("ddpscale ru", {"runs"}),
        ("ddpscale suite inf", {"inference"}),
        ("ddpscale history --gpu-sku b200", {"b200", "b200-sxm-180gb"}),
        ("ddpscale culprits --format ", {"text", "tsv"}),
        ("ddpscale suite inference --precision ", {"fp16"}),
    ],
)
def test_a_shell_offers(line: str, words: set[str]) -> None:
    """At the end of a line: asked as argcomplete's function in bash asks, for answers on file descriptor 8."""
    script = "import os, sys; sys.argv[0] = 'ddpscale'; from pytest_ddpscale.cli import main; main()"
    read, write = os.pipe()
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "bash",
        "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
    }  # fmt: skip
    with os.fdopen(read) as answer:
        shell = f'exec {sys.executable} -c "{script}" 8>&{write} 9>/dev/null'
        subprocess.run(["bash", "-c", shell], env=os.environ | asked, pass_fds=[write], timeout=60, check=False)
        os.close(write)
        assert words <= {word.strip() for word in answer.read().split("\n")}
    # Global completion reads no further.
    assert "PYTHON_ARGCOMPLETE_OK" in Path(cli.__file__).read_text(encoding="utf-8")[:1024]
