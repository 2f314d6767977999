"""A GPU that told something before and does not now is named; one that was replaced is not."""

from __future__ import annotations

from pytest_ddpscale.history.key_values import KeyValueSeries
from pytest_ddpscale.history.regression import fullest_places, missing_gpus
from tests.builders.nights import key_value


def told(*gpus: str, host: str = "n1", subject: str = "matmul", at_once: int = 1) -> list[KeyValueSeries]:
    return [key_value().series._replace(host=host, gpu=gpu, subject=subject, world_size=at_once) for gpu in gpus]


FOUR = told("A", "B", "C", "D")


def missing(runs: list[list[KeyValueSeries]], now: list[KeyValueSeries]) -> list[str]:
    return missing_gpus(fullest_places(runs), now)


def test_a_gpu_that_tells_nothing_is_missing() -> None:
    assert missing([FOUR], told("A", "B", "D")) == ["C on n1"]
    assert missing([FOUR], FOUR) == []


def test_it_stays_missing_after_runs_without_it() -> None:
    assert missing([FOUR, *[told("A", "B", "D")] * 30], told("A", "B", "D")) == ["C on n1"]


def test_a_gpu_that_was_replaced_is_not_missing() -> None:
    after = told("A", "B", "new", "D")
    assert missing([FOUR], after) == []
    assert missing([FOUR, after, after], told("A", "B", "D")) == ["new on n1"]


def test_what_no_gpu_was_asked_for_is_not_missed() -> None:
    assert missing([FOUR + told("A", "B", subject="copy")], told("A", "B", "C", "D")) == []


def test_fewer_at_once_tell_the_same_kind_of_value() -> None:
    assert missing([told("A", "B", "C", at_once=3)], told("A", "B", at_once=2)) == ["C on n1"]


def test_nodes_are_told_apart_and_their_own_values_are_no_gpus() -> None:
    runs = [FOUR + told("E", "F", host="n2") + told("")]
    assert missing(runs, told("A", "B", "C", "D") + told("E", host="n2")) == ["F on n2"]
