"""What suites share: a suite of one's own, how its rows are told in each format, and a run that is resumed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_ddpscale.cli import EXAMPLES, main
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.suites import registry
from pytest_ddpscale.suites.comparing import diff_of
from pytest_ddpscale.suites.engine import geometric_mean_estimate, mean_estimate
from pytest_ddpscale.suites.results import Column, Drawn, Results, Rows, cell, ends, facts_of, json_value
from pytest_ddpscale.util.command_parser import USER_ERROR
from pytest_ddpscale.util.document import html, markdown
from tests.approved import assert_approved
from tests.builders.judged import measure
from tests.builders.records import blocks_of, gang_on
from tests.forks.launcher import forking_here
from tests.suites.halves import Halves
from tests.suites.planned import planned, wavering
from tests.suites.run_records import SUITE_RECORD, text_of

Capture = pytest.CaptureFixture[str]
WIDE = Found(-0.25, (-0.5, math.inf))
COLUMNS = [Column("size", "Size"), Column("mib", "MiB"), Column("ms", "ms"),
           Column("kept", "Kept", "{:.1%}", above="noise"), Column("absent", "Absent")]  # fmt: skip
ROWS = [{"size": "1 | MiB", "mib": 1, "ms": Found(12.5, (12.0, 13.0)), "kept": Found(1.1, (1.0, 1.2)), "hidden": 3},
        {"size": "=25 MiB", "mib": 25, "ms": 2.0, "kept": None}]  # fmt: skip
TABLE = Rows("sizes", "Sizes <script>", COLUMNS, ROWS, notes=["plain | words"], drawn=Drawn("A <size>", "mib", ("ms",)))
FOUND = Results("2 sizes", ["1.1× at best"], [TABLE], ["resnet50: it broke"], ["1 <KiB> gave wrong results"])


def pages(found: Results) -> tuple[str, str]:
    blocks = found.blocks(0.95, facts_of("sizes", SUITE_RECORD, (), {"torch": "2.15"}))
    return html(*blocks), markdown(*blocks)


def test_table_csv_json_and_picture_follow_from_rows_and_columns() -> None:
    page, note = pages(FOUND)
    as_json = strict_json({"rows": TABLE.json(), "wide": json_value(WIDE)})
    assert_approved("suite-formats.txt", "\n".join([text_of(FOUND), note, TABLE.csv(), as_json, ""]))
    assert page.count('<img alt="A &lt;size&gt;: ms, 1, 12.5, 12 … 13; ms, 25, 2"') == 1
    assert "Sizes &lt;script&gt;" in page
    assert "<script>" not in page
    assert "<li>1 &lt;KiB&gt; gave wrong results</li>" in page
    assert "&lt;b&gt;" in page, "of the command"


def test_of_an_error_the_terminal_has_the_first_line_and_the_reports_all() -> None:
    broken = Results("x", problems=["batch 32: rank 0 failed: CUDA error\nlast lines of its NCCL log:\n  x"])
    assert [*broken.lines(0.95)][-1] == "- batch 32: rank 0 failed: CUDA error"
    assert all("last lines of its NCCL log:" in page for page in pages(broken))
    assert broken.headline == "x: nothing was measured; 1 part not measured in full"


def test_cells_have_a_minus_sign_and_a_dash_for_what_there_is_not() -> None:
    assert (cell(WIDE, "{:.0%}"), ends(WIDE, "{:.0%}")) == ("−25 %", "−50 % … inf %")
    assert (cell(Found(1.0, None)), ends(Found(1.0, None)), cell(None), ends(None)) == ("1", "–", "–", "–")


def test_mean_and_interval_of_independent_values() -> None:
    reach = 2.7764451 * math.sqrt(2.5 / 5)
    assert mean_estimate([10.0, 11.0, 12.0, 13.0, 14.0], 0.95).interval == pytest.approx((12 - reach, 12 + reach))
    logs = geometric_mean_estimate([math.exp(value) for value in range(10, 15)], 0.95)
    assert logs.interval == pytest.approx((math.exp(12 - reach), math.exp(12 + reach)))


def test_text_fits_a_narrow_terminal_and_tables_lose_nothing() -> None:
    lines = [*FOUND.lines(0.95, 40)]
    assert lines[lines.index("1 | MiB") :][:4] == ["1 | MiB", "  MiB: 1", "  ms: 12.5", "  95 % interval: 12 … 13"]
    assert max(map(len, lines)) <= 40


def test_no_suite_is_imported_before_its_command_is_typed() -> None:
    script = (
        "import sys\nfrom pytest_ddpscale.cli import parser_of_commands\nparser_of_commands()\n"
        "print([name for name in sys.modules if name.startswith('pytest_ddpscale.suites.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "['pytest_ddpscale.suites.registry']\n"


@pytest.fixture
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another suite of the command, as if its module were one of the package's."""
    module: Any = ModuleType("halves")
    module.Halves = Halves
    monkeypatch.setitem(sys.modules, "pytest_ddpscale.suites.halves", module)
    monkeypatch.setitem(registry.SUITES, Halves.name, ("halves", "half of the ranks against all of them"))
    monkeypatch.setitem(EXAMPLES, "suite halves", "suite halves --gpu-sku=cpu")
    monkeypatch.chdir(tmp_path)


SMALL = ("suite", "halves", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-block=0.01s", "--batches=2,4")


@pytest.mark.usefixtures("halves")
def test_a_suite_of_ones_own_needs_only_its_questions_and_columns(capsys: Capture) -> None:
    with forking_here():
        assert main([*SMALL, "--ddp-run-dir=run"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Halves of shufflenet_v2_x0_5: ")
    assert "Efficiency" in told
    run = RunDirectory.open(Path("run"))
    (rows,) = json.loads(run.suite_json.read_text())["tables"].values()
    assert [row["batch"] for row in rows] == [2, 4]
    names = {"halves.csv", "report.md", "report.html", "suite.json", "plots"}
    assert names <= {one.name for one in run.path.iterdir()}
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == told.splitlines()[:-1]


def lines_of(run: RunDirectory, study: str) -> list[str]:
    return [line for line in run.measurements_jsonl.read_text().splitlines() if f'"{study}"' in line]


@pytest.mark.usefixtures("halves")
def test_two_runs_of_a_suite_are_compared_and_of_two_suites_refused(capsys: Capture) -> None:
    run = recorded("a", 100.0)
    recorded("b", 90.0)
    recorded("c", 100.0, only=1)
    assert main(["compare", "a", "b"]) == 0
    assert_approved("suite-comparison.txt", capsys.readouterr().out)
    assert main(["compare", "a", "b", "--fail-below=5%"]) == 1
    assert "FAIL: worse by more than 5 %: 2: 2: img/s per rank, 4: img/s per rank" in capsys.readouterr().out
    assert main(["compare", "a", "b", "--fail-below=20%"]) == 0
    assert main(["compare", "b", "a", "--fail-below=5%"]) == 0, "faster is no loss"
    capsys.readouterr()
    assert main(["compare", "a", "c", "--fail-below=5%", "--format=json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["lost"], len(said["numbers"])) == (["4: img/s per rank", "4: Efficiency"], 2)
    run.write_json(run.suite_json, {"suite": "inference"})
    assert main(["compare", "a", "b"]) == USER_ERROR
    assert "found no number that has an interval in both; expected two runs of one" in capsys.readouterr().err


def test_a_number_that_may_be_negative_changes_by_a_share_of_the_first() -> None:
    columns = [Column("at", "At"), Column("ms", "ms", better=-1)]
    pairs = ((-80.0, 1.0, -79.0), (1.0, 1.5, 2.0))  # the first, how far its interval and the other's reach, the other
    for first, reach, second in pairs:
        a, b = (
            Results("x", tables=[Rows("t", "T", columns, [{"at": "n", "ms": Found(one, (one - reach, one + reach))}])])
            for one in (first, second)
        )
        (row,) = diff_of(a, b).table.rows
        assert (row["name"], row["change"].value) == ("n: ms", pytest.approx((second - first) / abs(first)))
        assert row["loss"] < row["change"].value


def recorded(name: str, pace: float, only: int = 2) -> RunDirectory:
    """A run of the first studies at a pace, as if it had been measured."""
    plan = planned(Halves(), "--batches=2,4", gpus=2, sku=("--gpu-sku=cpu",))
    run = RunDirectory.create(Path(name))
    run.write_json(run.plan_json, plan)
    run.write_json(run.run_json, SUITE_RECORD)
    run.write_json(run.suite_json, {"suite": Halves.name})
    records: list[AnyRecord] = [gang_on(["node0"], 2)]
    for study in plan.studies[:only]:
        told = measure(study, study.rounds, lambda arm, number, rank: pace * wavering(number), 2)
        records += [*blocks_of(told), StudyEnd(study=study.id, reason="rounds")]
    run.append_records(records)
    return run


@pytest.mark.usefixtures("halves")
def test_what_is_not_as_required_ends_the_command_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded("a", 100.0)
    for failures in ((), ("too slow",)):
        told = Results("x", ["y"], failures=failures)
        monkeypatch.setattr(Halves, "results", lambda *_, told=told: told)
        assert main(["report", str(run.path)]) == len(failures)


@pytest.mark.usefixtures("halves")
def test_a_run_that_was_killed_is_resumed_by_the_same_command(capsys: Capture) -> None:
    with forking_here():
        assert main([*SMALL, "--ddp-run-dir=run"]) == 0
        run = RunDirectory.open(Path("run"))
        first, second = run.read_plan().studies
        kept, begun = (lines_of(run, study.id) for study in (first, second))
        run.set_aside(lambda record: isinstance(record, StudyEnd) and record.study == second.id)
        run.note(status="running")
        assert main(["report", "run"]) == 1
        assert "its end was not recorded" in capsys.readouterr().out
        assert main([*SMALL, "--ddp-resume=run"]) == 0
        again = RunDirectory.open(Path("run"))
        anew = lines_of(again, second.id)
        assert (lines_of(again, first.id), len(anew)) == (kept, len(begun)), "of a study that is measured again"
        assert anew != begun
        assert again.read_run().status == "finished"
        before = len(again.read_records())
        assert main([*SMALL, "--ddp-resume=run"]) == 0, "of a whole run nothing is measured again"
        assert len(RunDirectory.open(Path("run")).read_records()) == before
        assert main([*SMALL, "--ddp-resume=run", "--ddp-confidence=0.99"]) == 0
        assert run.read_suite()["confidence"] == 0.99
    capsys.readouterr()
    by_variables = ["tune", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--try=NCCL_ALGO=Ring", "--ddp-resume=run"]
    assert main(by_variables) == USER_ERROR, "its first plan is empty"
    for other in (["--batches=2,8"], ["--ddp-gpus-per-node=1"]):
        assert main([*SMALL, *other, "--ddp-resume=run"]) == USER_ERROR
    assert main(["suite", "inference", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-resume=run"]) == USER_ERROR
    told = capsys.readouterr().err
    assert told.count("run measures something else; expected the command and options that it was begun with") == 3
    assert "1 devices on 1 nodes can be used here, but run was started with 2 on 1" in told


@pytest.mark.usefixtures("halves")
def test_ctrl_c_leaves_a_report_of_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Supervisor, "measure", interrupted)
    assert main([*SMALL, "--ddp-run-dir=run"]) == 130
    assert "report: run/report.html" in capsys.readouterr().out
    assert RunDirectory.open(Path("run")).read_run().status == "interrupted"


@pytest.mark.parametrize(("said", "told"), [
    ({"suite": "nothing"}, "suite.json: found 'nothing'; expected a suite of this version: pytorch-ddp, "),
    ({"suite": "inference", "confidence": "high"}, "suite.json: found 'high'; expected a number such as 0.95"),
    ([], "is not a suite.json: it is no object"),
])  # fmt: skip
def test_a_suite_json_that_says_nothing_is_refused(tmp_path: Path, capsys: Capture, said: Any, told: str) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_json(run.suite_json, said)
    run.write_json(run.plan_json, Plan("cpu", "cpu", ()))
    run.write_json(run.run_json, SUITE_RECORD)
    assert main(["report", str(run.path)]) == USER_ERROR
    assert told in capsys.readouterr().err
