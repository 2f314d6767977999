"""The script that collects evidence on a GPU: its parts, files and refusals, on a stand-in for such a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from importlib.metadata import requires
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement

from pytest_ddpscale.cli import main
from pytest_ddpscale.settings import OPTIONS, read_value
from tests.benchmarks import BENCHMARKS, benchmark
from tests.since import since

pytestmark = [
    since("pytest", "8.4", "needs pygments, which the script asks for,"),
    since("pydantic", "2.11", "needs typing-inspection, which the script asks for,"),
]

EVIDENCE = BENCHMARKS / "gpu_evidence.sh"
PARTS = [
    *("nvidia-smi", "nvidia-smi-q", "versions", "tests", "some-tests-passed"),
    *("node-health", "pack-node-health", "training", "pack-training"),
    *("sampler-overhead", "fidelity-fp16", "fidelity-bf16", "inference", "pack-inference"),
    *("whole-run", "pack-whole-run", "find-max-batch", "pack-find-max-batch", "tune", "pack-tune"),
]
# Says what it is asked to run, and runs of it only what asks torch or makes the summary.
INTERPRETER = """#!{python}
import json, os, sys
from pathlib import Path
arguments = sys.argv[1:]
is_tool = any("pytest_ddpscale.cli" in one for one in arguments[:2])
if arguments[0] in ("-", "-c") and not is_tool:
    os.execv(sys.executable, [sys.executable, *arguments])
with open(os.environ["COMMANDS"], "a") as commands:
    commands.write(json.dumps(arguments) + "\\n")
given = dict(one.split("=", 1) for one in arguments if one.startswith("--") and "=" in one)
if "--ddp-run-dir" in given:
    run = Path(given["--ddp-run-dir"])
    run.mkdir()
    one = {{"id": "node_check[ecc]", "outcome": "passed", "value": 1.0, "unit": "fraction"}}
    verdicts = {{"sku": "h200", "outcome": "partial", "reason": "one GPU", "verdicts": [one]}}
    (run / "verdicts.json").write_text(json.dumps(verdicts))
elif "--json" in arguments:
    Path(arguments[arguments.index("--json") + 1]).write_text(json.dumps({{"ratio": 0.999}}))
print(os.environ["TESTS_SAY"])
sys.exit(os.environ["FAILS"] in " ".join(arguments))
"""
TORCH = """\
__version__ = "9.9"
class version:
    cuda = "13.0"
class backends:
    class cudnn:
        version = staticmethod(lambda: 91000)
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    get_device_name = staticmethod(lambda: "NVIDIA Stand-In")
    get_arch_list = staticmethod(lambda: ["sm_90"])
    get_device_properties = staticmethod(lambda index: "132 multiprocessors")
    class nccl:
        version = staticmethod(lambda: (2, 27, 5))
"""


def run_script(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EVIDENCE, *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )


class Collected(NamedTuple):
    """What the script left behind: exit code, summary, OUT_DIR, commands of the interpreter, the temporary folder."""

    exit_code: int
    summary: dict[str, Any]
    out: Path
    commands: list[list[str]]
    temporary: Path

    @property
    def parts(self) -> dict[str, bool]:
        return {part["name"]: part["ok"] for part in self.summary["parts"]}


def collect(folder: Path, *parts: str, tests_say: str = "73 passed", fails: str = "nothing does") -> Collected:
    tools, temporary, out, commands = (folder / name for name in ("tools", "tmp", "out", "commands"))
    tools.mkdir()
    temporary.mkdir()
    (tools / "torch.py").write_text(TORCH, encoding="utf-8")
    scripts = {"interpreter": INTERPRETER.format(python=sys.executable), "nvidia-smi": '#!/bin/sh\necho "smi $*"\n'}
    for name, text in scripts.items():
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    given = {"TMPDIR": temporary, "COMMANDS": commands, "TESTS_SAY": tests_say, "FAILS": fails}
    given |= {"PYTHON": tools / "interpreter", "PYTHONPATH": tools, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = run_script(out, *parts, **{name: str(value) for name, value in given.items()})
    assert "1 x NVIDIA Stand-In" in done.stdout, done.stderr
    lines = commands.read_text(encoding="utf-8").splitlines()
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return Collected(done.returncode, summary, out, list(map(json.loads, lines)), temporary)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    return collect(tmp_path_factory.mktemp("healthy"))


def test_all_parts_are_run_in_order_and_few_files_are_left(healthy: Collected) -> None:
    summary = healthy.summary
    assert (healthy.exit_code, summary["ok"], summary["gpus"]) == (0, True, "1 x NVIDIA Stand-In")
    assert healthy.parts == dict.fromkeys(PARTS, True)
    assert [*healthy.parts] == PARTS
    assert set(summary["benchmarks"]) == {"sampler-overhead", "fidelity-fp16", "fidelity-bf16", "find-max-batch"}
    assert set(summary["runs"]) == {"node-health", "training", "inference", "whole-run", "tune"}
    run = summary["runs"]["node-health"]
    assert (run["outcome"], run["verdicts"]) == ("partial", {"node_check[ecc]": ["passed", 1.0, "fraction"]})
    files = {"summary.json", "machine.txt", "tests.log", "run.log", "tools.log", "run.tar.gz", "benchmarks.log"}
    assert {path.name for path in healthy.out.iterdir()} == files
    assert list(healthy.temporary.iterdir()) == []
    with tarfile.open(healthy.out / "run.tar.gz") as packed:
        assert {"./node-health/verdicts.json", "./training/verdicts.json"} <= set(packed.getnames())
    text = (healthy.out / "machine.txt").read_text(encoding="utf-8")
    for expected in ("smi \n", "smi -q\n", "cuda 13.0", "compiled for sm_90", "132 multiprocessors"):
        assert expected in text


def test_every_test_that_needs_a_gpu_is_run(healthy: Collected) -> None:
    (command,) = [command for command in healthy.commands if "gpu" in command]
    tests = BENCHMARKS.parent / "tests"
    files = [path for path in tests.rglob("test_*.py") if path.name != Path(__file__).name]
    marked = [path for path in files if "pytest.mark.gpu" in path.read_text(encoding="utf-8")]
    assert marked
    assert {str(path.relative_to(tests.parent)) for path in marked} <= set(command)


def test_runs_take_options_that_there_are(healthy: Collected) -> None:
    by_flag = {option.flag: option for option in OPTIONS.values()}
    runs = [command for command in healthy.commands if command[:2] == ["-m", "pytest"]]
    assert len(runs) == 3
    for flag, equals, value in (option.partition("=") for run in runs for option in run if option.startswith("--")):
        if flag != "--durations" and (by_flag[flag] and equals):
            read_value(flag, value, by_flag[flag].parse)  # a value that the option refuses ends its part at once


def test_benchmarks_take_the_options_they_are_given(healthy: Collected, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [command for command in healthy.commands if command[0].startswith("benchmarks/")]
    assert len(commands) == 3
    for command in commands:
        monkeypatch.setattr(sys, "argv", command)
        assert benchmark(Path(command[0]).stem).parse_arguments().rounds >= 16


def test_tools_take_the_options_they_are_given(
    healthy: Collected, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = [command for command in healthy.commands if "pytest_ddpscale.cli" in command[1]]
    assert len(tools) == 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for flag, code, *arguments in tools:
        assert (flag, code) == ("-c", "import sys; from pytest_ddpscale.cli import main; sys.exit(main())")
        main(arguments)
        assert "no NVIDIA GPU is visible here" in capsys.readouterr().err  # nothing else is wrong


def test_a_part_that_fails_stops_no_other_and_skipped_tests_are_no_evidence(tmp_path: Path) -> None:
    found = collect(tmp_path, tests_say="73 skipped", fails="sampler_overhead.py")
    assert (found.exit_code, found.summary["ok"], [*found.parts]) == (1, False, PARTS)
    assert [name for name, ok in found.parts.items() if not ok] == ["some-tests-passed", "sampler-overhead"]


def test_parts_can_be_asked_for_by_name(tmp_path: Path) -> None:
    found = collect(tmp_path, "sampler", "fidelity")
    assert found.exit_code == 0
    assert [*found.parts] == [*PARTS[:3], "sampler-overhead", "fidelity-fp16", "fidelity-bf16"]


def test_what_is_missing_is_said_before_anything_else_with_all_that_has_to_be_carried(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")  # only the standard library
    bare.chmod(0o755)
    done = run_script(tmp_path / "out", PYTHON=str(bare))
    assert done.returncode == 4
    assert {"torch", "psutil", "pyyaml", "pytest-json-report"} < set(done.stderr.splitlines()[0].split())
    assert not (tmp_path / "out").exists()
    carried = set(done.stdout.removeprefix("to carry: ").split())
    project = requirements_of("pytest-ddpscale") - {"torch", "torchvision"} | {"hypothesis"}
    only_before_311 = {"exceptiongroup", "six", "tomli"} if sys.version_info < (3, 11) else set()
    # tzdata is needed only where the system has none.
    assert with_what_they_need(project) - carried <= {"tzdata"} | only_before_311


def requirements_of(distribution: str) -> set[str]:
    found = map(Requirement, requires(distribution) or ())
    wanted = [one.name for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]
    return {name.lower().replace("_", "-") for name in wanted}


def with_what_they_need(names: set[str]) -> set[str]:
    further = {further for name in names for further in requirements_of(name)} - names
    return with_what_they_need(names | further) if further else names


def test_wrong_usage_a_used_directory_and_a_machine_without_a_gpu_are_refused(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "__version__ = '9.9'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n", encoding="utf-8"
    )
    for arguments, code, said in (
        ([], 2, "OUT_DIR"),
        (["one", "two"], 2, "OUT_DIR [tests|node-health|training|"),
        ([tmp_path], 2, "is not empty"),
        ([tmp_path / "out"], 3, "no NVIDIA GPU here, so nothing was run"),
    ):
        done = run_script(*arguments, PYTHON=sys.executable, PYTHONPATH=str(tmp_path))
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"torch.py", "__pycache__"}
