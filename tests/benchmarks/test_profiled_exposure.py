"""The benchmark of exposed communication reads both methods out of a session's evidence."""

from __future__ import annotations

import pytest

from tests.benchmarks.scripts import benchmark
from tests.report.test_profile_text import DDP, NO_SYNC, evidence

sessions = benchmark("profiled_exposure")


def test_a_row_has_both_methods_with_their_intervals_and_whether_they_meet() -> None:
    [row] = sessions.rows_of(evidence(NO_SYNC, DDP))
    assert row["workload"] == "r"
    assert row["by_profile"] == pytest.approx([0.38, 0.3303, 0.4297], abs=1e-4)
    assert row["waiting"] == pytest.approx([0.3, 0.3, 0.3])
    assert row["slower_computing"][0] == pytest.approx(0.08)
    assert row["all_reduce_hidden"] == pytest.approx(0.25)
    assert row["agree"]
    [apart] = sessions.rows_of(evidence(NO_SYNC, DDP, no_sync_s=0.9))
    assert not apart["agree"]
