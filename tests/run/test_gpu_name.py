"""A GPU has one name everywhere: that of nvidia-smi, and the local rank only where it is another number."""

from __future__ import annotations

from typing import Any

from pytest_ddpscale.run.former import judgement_without_former, run_without_former
from pytest_ddpscale.run.gpu_name import gpu_name, gpu_number, short_gpu_name
from pytest_ddpscale.run.records import GangRecord, gangs_by_number
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu
from tests.rows import rows

UUID, ADDRESS = "GPU-5d3a91c2-77aa-4be1", "00000000:C1:00.0"


@rows(
    ("known", "name", "short"),
    [
        ((6, UUID, 6, ADDRESS), f"GPU 6 ({UUID}, {ADDRESS})", "GPU 6 (GPU-5d3a91c2…)"),
        ((6, UUID, 2, ADDRESS), f"GPU 6 ({UUID}, {ADDRESS}, local rank 2)", "GPU 6 (GPU-5d3a91c2…, local rank 2)"),
        ((6, UUID, None, ""), f"GPU 6 ({UUID})", "GPU 6 (GPU-5d3a91c2…)"),
        ((2, "", None, ""), "GPU 2", "GPU 2"),  # a lost one
        ((None, UUID, 2, ""), f"GPU of local rank 2 ({UUID})", "GPU of local rank 2 (GPU-5d3a91c2…)"),
        ((None, "", None, ""), "GPU", "GPU"),
        ((2, "cpu", 2, ""), "CPU rank 2", "CPU rank 2"),
    ],
)
def test_a_gpu_is_called_by_index_uuid_and_address(known: tuple[Any, ...], name: str, short: str) -> None:
    assert (gpu_name(*known), short_gpu_name(*known[:3])) == (name, short)
    assert name.startswith(gpu_number(known[0], known[2], known[1]))


def surveyed(host: str, *indices: int) -> Survey:
    gpus = (
        SurveyedGpu(index, f"GPU-{host}-{index}", "A100", f"00000000:{index:02X}:00.0", "20b2") for index in indices
    )
    return Survey(host, 1.0, gpus=tuple(gpus))


def test_a_gang_of_an_earlier_version_has_the_indices_of_the_survey() -> None:
    gang = GangRecord(
        gang=0, hosts=("n1", "n1", "n2"), local_ranks=(0, 1, 0), devices=("GPU-n1-2", "GPU-n1-3", "GPU-x")
    )
    found = gangs_by_number([surveyed("n1", 0, 1, 2, 3), gang, surveyed("n2", 0)])[0]
    assert [found.place(rank).gpu_index for rank in range(3)] == [2, 3, None]
    assert [found.place(rank).number for rank in range(3)] == ["GPU 2", "GPU 3", "GPU of local rank 0"]
    assert found.place(1).pci_bus_id == "00000000:03:00.0"
    assert gangs_by_number([gang]) == {0: gang}


def test_the_number_of_an_earlier_version_was_a_local_rank() -> None:
    run: dict[str, Any] = {"hosts": [{"host": "n1", "devices": [{"index": 2, "uuid": UUID, "name": "A100"}]}]}
    run_without_former(run)
    assert run["hosts"][0]["devices"] == [{"index": None, "uuid": UUID, "name": "A100", "local_rank": 2}]
    culprits = [
        {"gpu_index": 2, "gpu_uuid": uuid, "peer_gpu_index": None, "peer_gpu_uuid": None} for uuid in (UUID, "cpu")
    ]
    gpu = {"index": 3, "uuid": UUID}
    judgement = {"verdicts": [{"culprits": culprits}], "coverage": {"nodes": [{"gpus": [gpu]}]}}
    judgement_without_former(judgement)
    assert [(one["gpu_index"], one["local_rank"], one["pci_bus_id"]) for one in culprits] == [
        (None, 2, None), (2, 2, None),
    ]  # fmt: skip
    assert gpu == {"index": None, "uuid": UUID, "local_rank": 3, "pci_bus_id": ""}
