"""What suites share: a suite of one's own, how its rows are told in each format, and a run that is resumed."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_ddpscale.cli import EXAMPLES, main
from pytest_ddpscale.judge.stats import Estimate
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.suites import registry
from pytest_ddpscale.suites.comparing import diff_of
from pytest_ddpscale.suites.engine import MeasuredSuite, geometric_mean_estimate, mean_estimate
from pytest_ddpscale.suites.results import Column, Drawn, Results, Rows, facts_of
from pytest_ddpscale.util.document import html, markdown
from tests.approved import assert_approved
from tests.builders.judged import evidence_of_plan, make_measurement, measure
from tests.builders.records import blocks_of, gang_on
from tests.forks.launcher import forking_here
from tests.suites.conftest import refused
from tests.suites.halves import Halves
from tests.suites.planned import SUITE_RECORD, TWO_NODES, planned, text_of, wavering

Capture = pytest.CaptureFixture[str]
COLUMNS = [Column("size", "Size"), Column("mib", "MiB"), Column("ms", "ms"),
           Column("kept", "Kept", "{:.1%}"), Column("absent", "Absent")]  # fmt: skip
ROWS = [{"size": "1 | MiB", "mib": 1, "ms": Estimate(12.5, (12.0, 13.0)), "kept": Estimate(1.1, (1.0, 1.2)),
         "hidden": 3},
        {"size": "=25 MiB", "mib": 25, "ms": 2.0, "kept": None},
        {"size": "wide", "mib": 3, "ms": Estimate(1.0, None), "kept": Estimate(-0.25, (-0.5, math.inf))}]  # fmt: skip
TABLE = Rows("sizes", "Sizes <script>", COLUMNS, ROWS, notes=["plain | words"], drawn=Drawn("A <size>", "mib", ("ms",)))
BROKE = "resnet50: it broke\nlast lines of its NCCL log:\n  x"
FOUND = Results("2 sizes", ["1.1× at best"], [TABLE], [BROKE], ["1 <KiB> gave wrong results"])


def test_table_csv_json_and_picture_follow_from_rows_and_columns() -> None:
    """Of an error the terminal has the first line, and the reports all; a narrow one loses nothing."""
    blocks = FOUND.blocks(0.95, facts_of("sizes", SUITE_RECORD, (), {"torch": "2.15"}))
    page, narrow = html(*blocks), [*FOUND.lines(0.95, 40)]
    told = [text_of(FOUND), *narrow, markdown(*blocks), TABLE.csv(), strict_json({"rows": TABLE.json()}), ""]
    assert_approved("suite-formats.txt", "\n".join(told))
    assert max(map(len, narrow)) <= 40
    picture = '<img alt="A &lt;size&gt;: ms, 1, 12.5, 12 … 13; ms, 3, 1; ms, 25, 2"'
    of_command, of_failure = "&lt;b&gt;", "<li><p>1 &lt;KiB&gt; gave wrong results</p></li>"
    for one in (picture, "Sizes &lt;script&gt;", of_command, of_failure, "last lines of its NCCL log:"):
        assert one in page
    assert "<script>" not in page


def test_a_round_that_a_node_lacks_counts_for_nobody() -> None:
    plan = planned(Halves(), gpus=2, sku=TWO_NODES)
    study, arm = plan.studies[0], plan.studies[0].arms[-1]
    found = [
        make_measurement(study.id, arm, number, rank, host=f"n{rank // 2}", local_rank=rank % 2)
        for number, ranks in enumerate((4, 2, 4)) for rank in range(ranks)
    ]  # fmt: skip
    assert MeasuredSuite(evidence_of_plan(plan, found), 0.95, SUITE_RECORD).paces(study, arm).shape == (1, 2)


def test_mean_and_interval_of_independent_values() -> None:
    reach = 2.7764451 * math.sqrt(2.5 / 5)
    for estimate, scaled in ((mean_estimate, float), (geometric_mean_estimate, math.exp)):
        value, interval = estimate([scaled(value) for value in range(10, 15)], 0.95)
        assert value == pytest.approx(scaled(12))
        assert interval == pytest.approx((scaled(12 - reach), scaled(12 + reach)))


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
def test_two_runs_of_a_suite_are_compared_and_what_is_none_is_refused(capsys: Capture) -> None:
    """Faster is no loss, and a number that the other lacks is one."""
    run, told = recorded("a", 100.0), list[str]()
    recorded("b", 90.0)
    recorded("c", 100.0, only=1)
    for words in ("a b", "a b --fail-below=5%", "a b --fail-below=20%", "b a --fail-below=5%", "a c --fail-below=5%"):
        code = main(["compare", *words.split()])
        told.append(f"compare {words}: {code}\n{capsys.readouterr().out}")
    run.write_json(run.suite_json, {"suite": "inference"})
    told.append(refused(capsys, "compare", "a", "b"))
    unsound: list[Any] = [{"suite": "nothing"}, []]
    for said in unsound:
        run.write_json(run.suite_json, said)
        told.append(refused(capsys, "report", "a"))
    assert_approved("suite-comparison.txt", "\n".join([*told, ""]))


def test_a_number_that_may_be_negative_changes_by_a_share_of_the_first() -> None:
    columns = [Column("at", "At"), Column("ms", "ms", better=-1)]
    for first, reach, second, change in ((-80.0, 1.0, -79.0, 1 / 80), (1.0, 1.5, 2.0, 1.0)):
        cells = (Estimate(one, (one - reach, one + reach)) for one in (first, second))
        tables = (Rows("t", "T", columns, [{"at": "n", "ms": one}]) for one in cells)
        (row,) = diff_of(*(Results("x", tables=[one]) for one in tables)).table.rows
        assert (row["name"], row["change"].value) == ("n: ms", pytest.approx(change))
        assert row["loss"] < change


@pytest.mark.usefixtures("halves")
def test_a_suite_of_ones_own_is_measured_told_again_and_resumed_by_the_same_command(capsys: Capture) -> None:
    """It needs only its questions and columns."""

    def lines(study: str) -> list[str]:
        return [line for line in run.measurements_jsonl.read_text().splitlines() if f'"{study}"' in line]

    with forking_here():
        assert main([*SMALL, "--ddp-run-dir=run", "--ddp-note=a=1", "--ddp-note=b=2"]) == 0
        told, run, resumed = capsys.readouterr().out, RunDirectory.open(Path("run")), [*SMALL, "--ddp-resume=run"]
        assert told.startswith("Halves of shufflenet_v2_x0_5, on a CPU: ")
        assert "Efficiency" in told
        assert run.read_run().noted == {"a": "1", "b": "2"}
        assert {"halves.csv", "report.md", "report.html", "plots"} <= {one.name for one in run.path.iterdir()}
        assert main(["report", "run"]) == 0
        assert capsys.readouterr().out.splitlines()[:-1] == told.splitlines()[:-1]
        first, second = run.read_plan().study_ids
        kept, begun = lines(first), lines(second)
        run.set_aside(lambda record: isinstance(record, StudyEnd) and record.study == second)
        run.note(status="running")
        assert main(["report", "run"]) == 1
        assert "its end was not recorded" in capsys.readouterr().out
        assert main(resumed) == 0
        assert (lines(first), len(anew := lines(second))) == (kept, len(begun)), "of a study that is measured again"
        assert anew != begun
        assert RunDirectory.open(run.path).read_run().status == "finished"
        assert main([*resumed, "--ddp-confidence=0.99"]) == 0
        assert lines(second) == anew, "of a whole run nothing is measured again"
        assert "99 % interval" in capsys.readouterr().out
    # The first plan of variables is empty.
    for other in (
        ["tune", *SMALL[2:4], "--try=NCCL_ALGO=Ring"],
        ["suite", "inference", *SMALL[2:4]],
        [*SMALL, "--batches=2,8"],
    ):
        said = refused(capsys, *other, "--ddp-resume=run")
        assert "run measures something else; expected the command and options that it was begun with" in said
    said = refused(capsys, *resumed, "--ddp-gpus-per-node=1")
    assert "1 devices on 1 nodes are here, not 2 on 1" in said


@pytest.mark.usefixtures("halves")
def test_ctrl_c_leaves_a_report_of_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Supervisor, "measure", interrupted)
    assert main([*SMALL, "--ddp-run-dir=run"]) == 130
    assert "report: run/report.html" in capsys.readouterr().out
    assert RunDirectory.open(Path("run")).read_run().status == "interrupted"
