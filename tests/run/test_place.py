"""A GPU has one name everywhere: that of nvidia-smi, and the local rank only where it is another number."""

from __future__ import annotations

from pytest_ddpscale.run.place import Place
from tests.rows import rows

UUID, ADDRESS = "GPU-5d3a91c2-77aa-4be1", "00000000:C1:00.0"


@rows(
    ("place", "name", "short"),
    [
        (Place("n", 6, UUID, 6, ADDRESS), f"GPU 6 ({UUID}, {ADDRESS})", "GPU 6 (GPU-5d3a91c2…)"),
        (Place("n", 2, UUID, 6, ADDRESS), f"GPU 6 ({UUID}, {ADDRESS}, local rank 2)",
         "GPU 6 (GPU-5d3a91c2…, local rank 2)"),
        (Place("n", None, UUID, 6), f"GPU 6 ({UUID})", "GPU 6 (GPU-5d3a91c2…)"),
        (Place("n", None, "", 2), "GPU 2", "GPU 2"),  # a lost one
        (Place("n", 2, UUID), f"GPU of local rank 2 ({UUID})", "GPU of local rank 2 (GPU-5d3a91c2…)"),
        (Place("n"), "GPU", "GPU"),
        (Place("n", 2, "cpu", 2), "CPU rank 2", "CPU rank 2"),
    ],
)  # fmt: skip
def test_a_gpu_is_called_by_index_uuid_and_address(place: Place, name: str, short: str) -> None:
    assert (place.name, place.short) == (name, short)
    assert name.startswith(place.number)


def test_a_device_is_the_same_by_uuid_else_by_index_else_by_local_rank() -> None:
    assert Place("n", 2, UUID, 6).identity == Place("n", 1, UUID).identity != Place("m", 2, UUID, 6).identity
    assert Place("n", 2, "", 6).identity == Place("n", None, "", 6).identity != Place("n", 2).identity
    assert Place("n", 2).identity != Place("n", 3).identity
