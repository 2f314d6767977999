"""The control plane: torch's TCPStore, never a collective, so that ranks that wait leave their device idle."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore

from pytest_ddpscale.results.records import parse_strict_json, strict_json


class Control:
    """What ranks tell each other besides what is being measured.

    Attributes:
        rank: global rank.
        local_rank: rank on this host.
        world_size: ranks in the gang.
        store: the store that process groups are made with.
    """

    def __init__(self, store: Store, rank: int, local_rank: int, world_size: int) -> None:
        self.store = store
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self._messages = PrefixStore("control", store)

    def say(self, key: str, data: Any) -> None:
        """Publish JSON under a key."""
        self._messages.set(key, strict_json(data))

    def hear(self, key: str) -> Any:
        """Wait for a key and return its JSON.

        Raises:
            torch.distributed.DistStoreError: nobody said it within the store's timeout.
        """
        return parse_strict_json(self._messages.get(key).decode("utf-8"))

    def take(self, key: str) -> Any:
        """As `hear`, and forget the key, so that the store does not grow with the rounds."""
        data = self.hear(key)
        self._messages.delete_key(key)
        return data


def connect(timeout: timedelta) -> Control:
    """Join the store of this torchrun launch.

    torchrun's agent hosts a TCPStore at MASTER_ADDR:MASTER_PORT unless it says otherwise in
    TORCHELASTIC_USE_AGENT_STORE; then rank 0 hosts one.

    Raises:
        RuntimeError: not started by torchrun.
    """
    try:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ["LOCAL_RANK"])
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as missing:
        raise RuntimeError(f"{missing} is not set: the worker has to be started by torchrun") from None
    agent_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    tcp = TCPStore(host, port, is_master=rank == 0 and not agent_hosts, wait_for_workers=False, timeout=timeout)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Control(PrefixStore(f"ddpscale/{restart}", tcp), rank, local_rank, world_size)
