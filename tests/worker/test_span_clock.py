"""Spans of one clock: they add up, never overlap, and leave out what is between them."""

from __future__ import annotations

import time

import pytest

from pytest_ddpscale.worker.span_clock import SpanClock


def test_spans_of_one_name_add_up_and_what_is_between_them_belongs_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.0, 20.0, 22.0, 30.0, 34.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = SpanClock()
    for name in ("training", "waiting", "training"):
        with clock(name):
            pass
    assert clock.taken() == {"training": 5.0, "waiting": 2.0}
    assert clock.taken() == {}


def test_a_span_within_another_is_refused() -> None:
    clock = SpanClock()
    with pytest.raises(RuntimeError, match="waiting begins within training"), clock("training"), clock("waiting"):
        pass


def test_a_span_ends_with_an_error_in_it() -> None:
    clock = SpanClock()
    with pytest.raises(ValueError, match="broken"), clock("training"):
        raise ValueError("broken")
    assert clock.seconds["training"] > 0
    with clock("waiting"):
        pass
