"""Nodes beside their past, from the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_ddpscale.errors import HistoryError, OptionError
from pytest_ddpscale.history.database import writing
from pytest_ddpscale.history.overview import NodeHistory, read_histories
from pytest_ddpscale.history.recording import add_run
from tests.builders.nights import SKU, at, conclude, judged_run


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def night(history: Path, number: int, paces: Mapping[str, Sequence[float]], **keys: object) -> None:
    """One run of each host."""
    for host, samples_per_s in paces.items():
        folder = history.parent / f"{number}-{host}"
        add_run(history, judged_run(folder, number, {host: samples_per_s}, **keys).path)  # type: ignore[arg-type]


def only(found: list[NodeHistory]) -> NodeHistory:
    [node] = found
    return node


def standings(node: NodeHistory) -> dict[tuple[int | None, str], str | None]:
    return {(one.value.gpu_index, one.value.arm): one.past.standing if one.past else None for one in node.drifts}


def test_a_gpu_that_fell_is_worse_than_its_past_and_the_others_are_not(history: Path) -> None:
    for number in range(6):
        night(history, number, {"n1": [100.0 + number % 2, 100.0]})
    night(history, 6, {"n1": [100.0, 90.0]}, outcome="rejected")
    node = only(read_histories(history, node="n1"))
    assert standings(node) == {
        (0, "alone"): "usual",
        (0, "each"): "usual",
        (1, "each"): "worse",
        (None, "ddp"): "worse",
    }
    assert (node.sku, node.host, node.last.outcome, len(node.runs)) == (SKU, "n1", "rejected", 7)
    assert node.worst is not None
    assert node.worst.loss == pytest.approx(0.1, abs=0.01)


def test_rejected_runs_are_no_past_to_be_held_against(history: Path) -> None:
    for number in range(6):
        night(history, number, {"n1": [100.0, 100.0]})
    for number in range(6, 20):
        night(history, number, {"n1": [90.0, 90.0]}, outcome="rejected")
    node = only(read_histories(history, node="n1"))
    assert set(standings(node).values()) == {"worse"}


def test_a_gpu_that_was_replaced_begins_anew(history: Path) -> None:
    for number in range(6):
        night(history, number, {"n1": [100.0, 100.0]})
    run = judged_run(history.parent / "new", 6)
    told = run.measurements_jsonl.read_text().replace("GPU-n1-1", "GPU-new")
    run.measurements_jsonl.write_text(told)
    conclude(run, "accepted", at(6))
    add_run(history, run.path)
    node = only(read_histories(history, node="n1"))
    assert standings(node)[1, "each"] is None
    assert standings(node)[0, "each"] == "usual"
    assert len(node.drifts) == 4, "the old one is told of no more"


def test_a_change_of_software_is_told(history: Path) -> None:
    night(history, 0, {"n1": [100.0, 100.0]}, driver="575.57", versions={"torch": "2.14.0"})
    night(history, 1, {"n1": [100.0, 100.0]}, driver="580.65", versions={"torch": "2.15.0"})
    assert only(read_histories(history)).changes == (
        "driver 575.57 before, 580.65 now",
        "torch 2.14.0 before, 2.15.0 now",
    )


def test_a_node_or_sku_that_is_not_there_is_said_with_those_that_are(history: Path) -> None:
    night(history, 0, {"n1": [100.0, 100.0], "n2": [100.0, 100.0]})
    with pytest.raises(OptionError, match=r"NODE: found 'n9'; expected one of n1, n2\."):
        read_histories(history, node="n9")
    with pytest.raises(OptionError, match=f"--gpu-sku: found 'b200'; expected one of {SKU}"):
        read_histories(history, "b200")
    assert [node.host for node in read_histories(history, SKU)] == ["n1", "n2"]


def test_a_history_without_nodes_is_said(history: Path) -> None:
    with writing(history):
        pass
    with pytest.raises(HistoryError, match="has no node"):
        read_histories(history)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE key_values SET value = -1",
        "UPDATE key_values SET value = 'much'",
        "UPDATE runs SET started_at = 'yesterday'",
        "UPDATE hosts SET versions = '{'",
        "UPDATE hosts SET versions = '[]'",
    ],
)
def test_rows_that_nobody_of_us_wrote_are_a_sentence(history: Path, statement: str) -> None:
    night(history, 0, {"n1": [100.0, 100.0]})
    with writing(history) as connection:
        connection.execute(statement)
    with pytest.raises(HistoryError, match="is damaged"):
        read_histories(history)
