"""A GPU that is lost while it works, or turns out to be when its ranks have failed, is named for it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pytest_ddpscale.run.survey_record import RemappedRows, Survey, SurveyedGpu
from tests.builders.nodes_checked import CPU, cpu_survey, gpus, judged, survey, windows, with_gpu

LOST = "GPU is lost"
GONE = SurveyedGpu(3, "", "", "", "", problem="GPU is lost", is_lost=True)


def afterwards(*found: SurveyedGpu, host: str = "n1", **changes: Any) -> Survey:
    """What a node's driver says after ranks have failed."""
    return Survey(host, 1.8e9, has_driver=True, gpus=found or gpus(host), **changes)


def with_lost_gpu() -> Survey:
    """The fourth GPU is where it was, and tells nothing."""
    return afterwards(*(GONE if gpu.index == 3 else gpu for gpu in gpus()))


def test_one_that_does_not_answer_any_more_is_named_with_what_it_said_before() -> None:
    found = judged("gpus", survey(), survey("n2"), post_mortems=[with_lost_gpu(), afterwards(host="n2")])
    assert found.outcome == "failed"
    assert [(one.host, one.gpu_index, one.gpu_uuid, one.is_certain) for one in found.culprits] == [
        ("n1", 3, "GPU-n1-3", True)
    ]
    assert found.culprits[0].evidence == "lost after ranks failed: GPU is lost"
    assert found.value == 0.5


def test_one_that_the_driver_no_longer_lists_is_named() -> None:
    left = [replace(gpu, index=number) for number, gpu in enumerate(gpu for gpu in gpus() if gpu.index != 3)]
    found = judged("gpus", survey(), post_mortems=[afterwards(*left)])
    assert [one.gpu_index for one in found.culprits] == [3]


def test_one_is_named_once_however_often_it_was_found_to_be_lost() -> None:
    telemetry = windows(change=lambda one: {"lost": LOST} if one.local_rank == 3 else {})
    found = judged("gpus", survey(), telemetry=telemetry, post_mortems=[with_lost_gpu(), with_lost_gpu()])
    assert [(one.gpu_index, one.evidence) for one in found.culprits] == [(3, "lost under load: GPU is lost")]


def test_only_what_nvml_calls_lost_after_the_survey_is_lost() -> None:
    unreadable = {"device": "NVMLError_Unknown: Unknown Error"}
    for lost, outcome in ((LOST, "failed"), ("GPU requires restart", "failed"), ("", "passed")):
        changes: dict[str, Any] = {"unreadable": unreadable, "lost": lost}
        telemetry = [replace(one, **changes) if one.local_rank == 3 else one for one in windows()]
        assert judged("gpus", survey(), telemetry=telemetry).outcome == outcome
    mended = windows(change=lambda one: {"lost": LOST})  # as in a run that is resumed
    assert judged("gpus", survey(unix_s=1.8e9), telemetry=mended).outcome == "passed"


def test_a_gpu_that_has_another_trouble_is_named_and_not_accused() -> None:
    after = afterwards(*(replace(gpu, problem="Unknown Error") if gpu.index == 3 else gpu for gpu in gpus()))
    found = judged("gpus", survey(), post_mortems=[after])
    assert (found.outcome, found.culprits) == ("not_measured", ())
    assert "GPU 3 (GPU-n1-3) did not answer after ranks failed: Unknown Error" in found.reason


def test_what_shows_no_lost_gpu_accuses_nobody_and_says_why_it_tells_little() -> None:
    late = replace(afterwards(), gpus=(), has_driver=False, problem="the survey was not done within 12 s")
    for after, note in (
        (afterwards(), ""),
        (afterwards(*gpus("n1-later-step")), "other GPUs than before launch"),
        (late, "the survey was not done within 12 s"),
    ):
        found = judged("gpus", survey(), post_mortems=[after])
        assert (found.outcome, found.culprits) == ("passed", ())
        assert note in "".join(found.notes)
    assert judged("gpus", cpu_survey(), expectation=CPU, post_mortems=[afterwards()]).outcome == "passed"


def test_one_that_was_lost_before_is_not_told_twice() -> None:
    before = with_gpu(problem="GPU is lost", uuid="", name="")
    found = judged("gpus", before, post_mortems=[with_lost_gpu()])
    assert [one.evidence for one in found.culprits] == ["lost: GPU is lost"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"driver_problem": "Unknown Error"}, "Unknown Error"),
        ({"has_driver": False}, "the NVIDIA driver is no longer loaded"),  # as while it is reloaded
    ],
)
def test_a_driver_that_does_not_answer_any_more_is_no_pass(changes: dict[str, Any], reason: str) -> None:
    after = replace(afterwards(), gpus=(), **changes)
    found = judged("gpus", survey(), post_mortems=[after])
    assert (found.outcome, found.culprits) == ("not_measured", ())
    assert f"n1: after ranks failed: {reason}" in found.reason


def test_of_a_node_that_nobody_looked_at_before_nothing_can_be_said() -> None:
    found = judged("gpus", replace(survey(), problem="it hung", gpus=()), post_mortems=[with_lost_gpu()])
    assert (found.outcome, found.culprits) == ("not_measured", ())


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({"ecc_uncorrected": 2}, "2 new uncorrectable memory errors after ranks failed"),
        (
            {"remapped_rows": RemappedRows(0, 1, pending=True, failed=False)},
            "a memory row waits to be remapped after ranks failed",
        ),
        (
            {"remapped_rows": RemappedRows(0, 1, pending=False, failed=True)},
            "a faulty memory row could not be remapped after ranks failed",
        ),
    ],
)
def test_a_memory_error_that_ended_ranks_is_found_after_them(changes: dict[str, Any], evidence: str) -> None:
    after = afterwards(*gpus(which=[5], **changes))
    found = judged("ecc_under_load", survey(), telemetry=windows(), post_mortems=[after])
    assert [(one.gpu_index, one.gpu_uuid, one.evidence) for one in found.culprits] == [(5, "GPU-n1-5", evidence)]


def test_a_page_that_is_to_be_retired_since_ranks_failed_is_found_after_them() -> None:
    before = survey(gpus=gpus(which=[5], retired_pages_pending=False))
    after = afterwards(*gpus(which=[5], retired_pages_pending=True))
    found = judged("ecc_under_load", before, telemetry=windows(), post_mortems=[after])
    assert [one.gpu_index for one in found.culprits] == [5]


def test_a_look_afterwards_is_no_watch() -> None:
    """Of ranks that failed before anything was measured."""
    assert judged("ecc_under_load", survey(), post_mortems=[afterwards()]).outcome == "not_measured"


def test_a_memory_error_that_was_seen_under_load_is_told_once() -> None:
    telemetry = windows(change=lambda one: {"ecc_uncorrected": 2} if (one.local_rank, one.round) == (5, 1) else {})
    after = afterwards(*gpus(which=[5], ecc_uncorrected=2))
    found = judged("ecc_under_load", survey(), telemetry=telemetry, post_mortems=[after])
    assert [one.evidence for one in found.culprits] == ["2 new uncorrectable memory errors under load"]


@pytest.mark.parametrize("before", [4, None])
def test_memory_errors_from_before_are_not_new(before: int | None) -> None:
    after = afterwards(*gpus(which=[5], ecc_uncorrected=4))
    found = judged("ecc_under_load", with_gpu([5], ecc_uncorrected=before), telemetry=windows(), post_mortems=[after])
    assert (found.outcome, found.culprits) == ("passed", ())
