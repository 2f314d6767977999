"""A survey is written and read as it is, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import to_builtins

from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader, line_of
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.survey_record import (
    GpuProcess,
    InfiniBandPort,
    PostMortem,
    RemappedRows,
    Survey,
    SurveyedGpu,
    post_mortems_of,
    read_survey,
    surveys_of,
)
from tests.rows import rows

GPU = SurveyedGpu(
    index=3, uuid="GPU-1", name="NVIDIA A100-SXM4-80GB", pci_bus_id="00000000:17:00.0", pci_device_id="20b2",
    compute_capability="8.0", memory_bytes=8 * 10**10, remapped_rows=RemappedRows(0, pending=True, failed=False),
    throttle_reasons=("gpu_idle",), power_limit_w=400.0, processes=(GpuProcess(7, "python", None),),
    unreadable={"retired_pages_pending": "Not Supported"},
)  # fmt: skip
SURVEY = Survey(
    "n1", 1.5, has_driver=True, gpus=(GPU, SurveyedGpu(4, "", "", "", "", problem="GPU is lost")), cores=8,
    versions={"driver": "570.86.15", "nccl": None}, arch_list=("sm_80",), free_bytes={"temporary": 5},
    infiniband=(InfiniBandPort("mlx5_0", 1, "ACTIVE", "InfiniBand"),), topology="GPU0",
)  # fmt: skip


@rows("survey", [SURVEY, Survey("n1", 1.0, "the survey was not done within 60 s")])
def test_what_is_written_is_read(survey: Survey) -> None:
    assert read_survey(line_of(survey)) == RecordReader().read(line_of(survey)) == survey
    assert RecordReader().read(line_of(PostMortem(survey))) == PostMortem(survey)


@rows(
    "changes",
    [
        {"host": 3}, {"has_driver": 1}, {"mood": "good"}, {"versions": {"driver": 570}}, {"gpus": [{"index": 1}]},
        {"kind": "post_mortem"},
        {"gpus": [to_builtins(GPU) | {"ecc_uncorrected": "0"}]}, {"gpus": [to_builtins(GPU) | {"ecc_enabled": 1}]},
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        read_survey(json.dumps({**to_builtins(SURVEY), **changes}).encode())


def test_what_gpus_are_after_a_failure_is_no_survey() -> None:
    records: list[AnyRecord] = [PostMortem(SURVEY), Survey("n1", 1.0)]
    assert post_mortems_of(records) == [SURVEY]
    assert surveys_of(records) == {"n1": Survey("n1", 1.0)}


def test_a_nodes_last_survey_counts() -> None:
    found = surveys_of([Survey("n1", 1.0), StudyEnd("survey", "error"), Survey("n2", 1.0), Survey("n1", 2.0)])
    assert {host: survey.unix_s for host, survey in found.items()} == {"n1": 2.0, "n2": 1.0}
