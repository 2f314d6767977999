"""Published numbers are compared with the lines that hold them, and derived ones with what they follow from."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks import BENCHMARKS, benchmark
from tests.forks.start import python

THRESHOLDS = BENCHMARKS.parent / "thresholds.yaml"
OURS = """
schema_version: 2
sources: {lab: 'someone/results@COMMIT: one node'}
workloads: {resnet50-fp16: {model: resnet50, precision: fp16}}
skus:
  h100:
    description: an H100
    detect: {name: '^H100$'}
    batch: {resnet50-fp16: 8}
    requirements:
      - {throughput_per_gpu: {1: 100.5, 8: 96}, weak_scaling_efficiency: {8: 0.955}, of: resnet50-fp16, published: lab,
         margin: 5 %}
      - {matmul_tflops: 60, probe: matmul-fp16, provisional: 60 % of the peak}
"""
LISTED = r"""
lines: {}
sources:
  - source: lab
    at: someone/results@COMMIT
    files: {runs: 'runs/*.txt', table: table.md}
    lines: {img: '^img/s: ([\d.]+)', eight: '^\| NAME \| ([\d.]+) \|'}
    rows:
      - sku: h100
        of: resnet50-fp16
        throughput_per_gpu: {1: mean(img(runs)), 8: "eight(table, '8 GPUs')"}
        weak_scaling_efficiency: {8: "eight(table, '8 GPUs') / mean(img(runs))"}
formulas:
  - {sku: h100, probe: matmul-fp16, matmul_tflops: 0.6 * 100}
"""


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
    done = subprocess.run(["git", "-C", folder, *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def cited(tmp_path: Path) -> Path:
    """Thresholds of a source, the list of its lines, and a clone that holds them."""
    clone = tmp_path / "copies" / "someone" / "results"
    (clone / "runs").mkdir(parents=True)
    git(clone, "init", "--quiet")
    for number, speed in enumerate(("100", "101")):
        (clone / "runs" / f"{number}.txt").write_text(f"started\nimg/s: {speed}\n")
    (clone / "table.md").write_text("| GPUs | img/s |\n| 8 GPUs | 96 |\n")
    git(clone, "add", ".")
    git(clone, "commit", "--quiet", "--message=Add runs")
    (clone / "table.md").write_text("not committed")
    commit = git(clone, "rev-parse", "HEAD")
    (tmp_path / "thresholds.yaml").write_text(OURS.replace("COMMIT", commit[:7]))
    (tmp_path / "sources.yaml").write_text(LISTED.replace("COMMIT", commit))
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    file.write_text(text.replace(old, new), encoding="utf-8")


def checked(*arguments: str | Path) -> tuple[int, list[str], list[str]]:
    """Exit code, lines before the problems, and the problems."""
    command = python(BENCHMARKS / "sources.py", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not done.stderr
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("arithmetic:"))
    assert lines[-1] == f"{len(lines) - at - 2} problems"
    return done.returncode, lines[: at + 1], lines[at + 1 : -1]


def checked_ours(folder: Path, *, copies: bool = True) -> tuple[int, list[str], list[str]]:
    told: list[str | Path] = [folder / "thresholds.yaml", "--list", folder / "sources.yaml"]
    return checked(*told, *(("--copies", folder / "copies") if copies else ()))


def test_the_packaged_file_agrees_with_its_arithmetic_and_pages() -> None:
    code, told, problems = checked()
    assert (code, problems) == (0, [])
    assert told[-2] == "not read, for lack of --copies"
    (here,) = (line.split(" | ") for line in told if line.startswith("| here |"))
    assert int(here[1]) >= 20
    assert min(int(count) for count in re.findall(r"\d+", told[-1])) >= 30


def test_lines_of_a_clone_are_compared(cited: Path) -> None:
    code, told, problems = checked_ours(cited)
    assert (code, problems) == (0, [])
    assert told[-3:-1] == ["| lab | 3 | 0 | 0 |", "| all | 3 | 0 | 0 |"]
    assert told[-1] == "arithmetic: 3 margins, 1 ratios, 1 formulas"


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("packaged.yaml", "{throughput_per_gpu: {1: 290, 2: 239}", "{throughput_per_gpu: {1: 295, 2: 239}",
         "cpu throughput_per_gpu shuffle96-fp32 1: here, this repository: found 290.3"),
        ("packaged.yaml", "{1: 2020}, of: resnet101-fp16", "{1: 2120}, of: resnet101-fp16",
         "h100 throughput_per_gpu resnet101-fp16 1: formula: found 2016.66"),
        ("packaged.yaml", "{generation_ratio: {1: 1.9}, of", "{generation_ratio: {1: 1.8}, of",
         "a100-sxm4-80gb generation_ratio resnet50-nchw-fp16 1: ratio: found 1.89916"),
        ("packaged.yaml", "published: article-a100", "published: nccl-a100",
         "a100-sxm4-80gb weak_scaling_efficiency resnet50-fp16 8 nodes: article-a100"),
        ("thresholds.yaml", "100.5", "100.4",
         "found 100.5 = mean(img(runs)), expected 100.4; read runs/0.txt:2 100; runs/1.txt:2 101"),
        ("sources.yaml", "NAME", "NAME of 2", r"no line '^\\| 8\\ GPUs of 2 \\| ([\\d.]+) \\|' in table.md"),
        ("sources.yaml", "table.md", "tables.md", "in any file; read nothing"),
        ("sources.yaml", "{1: mean(img(runs)), ", "{", "per_gpu resnet50-fp16 1: published, but not in the list"),
        ("sources.yaml", "img(runs)), ", "img(runs)), 4: 1, ", "resnet50-fp16 4: lab, someone/results@"),
        ("sources.yaml", "mean(img(runs)), ", "img(runs), ", "img(runs): TypeError"),
    ],
)  # fmt: skip
def test_a_changed_number_or_line_is_found(cited: Path, file: str, old: str, new: str, problem: str) -> None:
    (cited / "packaged.yaml").write_bytes(THRESHOLDS.read_bytes())
    change(cited / file, old, new)
    code, _, problems = checked(cited / file) if file == "packaged.yaml" else checked_ours(cited)
    assert code == 1
    assert any(problem in one for one in problems), problems


def test_another_commit_than_the_cited_one_is_a_problem(cited: Path) -> None:
    commit = git(cited / "copies" / "someone" / "results", "rev-parse", "--short=7", "HEAD")
    change(cited / "thresholds.yaml", f"results@{commit}", "results@0123456")
    code, _, problems = checked_ours(cited)
    assert (code, len(problems)) == (1, 3)
    assert all(problem.endswith("its source cites another commit") for problem in problems)


def test_without_a_copy_nothing_is_compared(cited: Path) -> None:
    code, told, problems = checked_ours(cited, copies=False)
    assert (code, problems, told[-3]) == (0, [], "| all | 0 | 0 | 3 |")


def test_a_clone_without_the_commit_is_no_copy(cited: Path) -> None:
    commit = git(cited / "copies" / "someone" / "results", "rev-parse", "HEAD")
    change(cited / "thresholds.yaml", commit[:7], "0123456")
    change(cited / "sources.yaml", commit, "0123456789012345678901234567890123456789")
    code, told, problems = checked_ours(cited)
    assert (code, problems, told[-3]) == (0, [], "| all | 0 | 0 | 3 |")
    assert told[-2].endswith("for lack of copies of someone/results@0123456789012345678901234567890123456789")


@pytest.mark.parametrize(
    ("number", "written", "agrees"),
    [(1.8992, 1.9, True), (1.85, 1.9, False), (0.0137931, 0.014, True), (0.0422, 0.04, False), (2787.4, 2787.0, True),
     (2787.6, 2787.0, False), (0.00004, 0.0, True), (0.001, 0.0, False)],
)  # fmt: skip
def test_numbers_agree_by_their_last_digit(number: float, written: float, agrees: bool) -> None:
    sources = benchmark("sources")
    assert (sources.difference(repr(number), {}, written, sources.last_digit(written)) == "") == agrees
