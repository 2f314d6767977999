"""The control plane: torch's TCPStore, never a collective, so that ranks that wait leave their device idle."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.results.records import parse_strict_json, strict_json

# What a node's agent says of its node: its place in the allocation, and how many nodes the gang has.
NODE_INDEX_VARIABLE = "DDPSCALE_NODE_INDEX"
NODES_VARIABLE = "DDPSCALE_NODES"

# Keys asked for at once. One by one each costs three round trips, which for 8,192 ranks is longer than a block;
# asked for in one go they make the store's server read the long request again with each packet of it.
KEYS_AT_ONCE = 256
MOST_NAMED = 8


class Control:
    """What ranks tell each other besides what is being measured.

    Attributes:
        rank: global rank.
        local_rank: rank on this host.
        world_size: ranks in the gang.
        layout: how they are numbered over the nodes.
        store: the store that process groups are made with.

    Args:
        nodes: among which the ranks are shared evenly.
    """

    def __init__(self, store: Store, rank: int, local_rank: int, world_size: int, nodes: int = 1) -> None:
        self.store = store
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self.layout = Layout(nodes, world_size // nodes)
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

    def wait_for(self, key: str) -> None:
        """Wait until a key was said; as `hear`, in one round trip instead of two, as what was said does not matter.

        Raises:
            torch.distributed.DistStoreError: nobody said it within the store's timeout.
        """
        self._messages.wait([key])

    def hear_all(self, keys: Sequence[str]) -> list[Any]:
        """Wait for all keys and return the JSON of each, in their order.

        Raises:
            torch.distributed.DistStoreError: some were not said within the store's timeout; the message names them.
        """
        found: list[bytes] = []
        for first in range(0, len(keys), KEYS_AT_ONCE):
            some = list(keys[first : first + KEYS_AT_ONCE])
            try:
                found += self._messages.multi_get(some)
            except DistStoreError as error:
                raise DistStoreError(self._silence(keys)) from error
        return [parse_strict_json(data.decode("utf-8")) for data in found]

    def forget(self, key: str) -> None:
        """Remove what was said, so that the store does not grow with the rounds."""
        self._messages.delete_key(key)

    def _silence(self, keys: Sequence[str]) -> str:
        missing = [key for key in keys if not self._messages.check([key])]
        named = ", ".join(missing[:MOST_NAMED]) + (", …" if len(missing) > MOST_NAMED else "")
        return f"{len(missing)} of {len(keys)} messages did not come in time: {named}"


def connect(timeout: timedelta) -> Control:
    """Join the store of this torchrun launch.

    torchrun's agent hosts a TCPStore at MASTER_ADDR:MASTER_PORT unless it says otherwise in
    TORCHELASTIC_USE_AGENT_STORE; then rank 0 hosts one.

    torchrun numbers nodes by their addresses. Where each node's agent says which node of the allocation it is, ranks
    are numbered in that order instead.

    Raises:
        RuntimeError: not started by torchrun, or on another number of nodes than the agents say.
    """
    try:
        torchrun_rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank, per_node = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as missing:
        raise RuntimeError(f"{missing} is not set: the worker has to be started by torchrun") from None
    nodes = int(os.environ.get(NODES_VARIABLE, world_size // per_node))
    if nodes * per_node != world_size:
        raise RuntimeError(f"torchrun joined {world_size} ranks; {nodes} nodes of {per_node} are {nodes * per_node}")
    node_index = os.environ.get(NODE_INDEX_VARIABLE)
    rank = torchrun_rank if node_index is None else int(node_index) * per_node + local_rank
    agent_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_master = torchrun_rank == 0 and not agent_hosts
    tcp = TCPStore(host, port, is_master=is_master, wait_for_workers=False, timeout=timeout)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Control(PrefixStore(f"ddpscale/{restart}", tcp), rank, local_rank, world_size, nodes)
