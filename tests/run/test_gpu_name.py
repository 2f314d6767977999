"""A GPU has one name everywhere: that of nvidia-smi, and the local rank only where it is another number."""

from __future__ import annotations

from typing import Any

from pytest_ddpscale.run.gpu_name import gpu_name, gpu_number, short_gpu_name
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
