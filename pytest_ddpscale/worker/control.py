"""The control plane: torch's TCPStore instead of collectives, so waiting ranks leave their device idle; and the process
groups of those that communicate.

Any process that reaches the store's port may use it, and a local one always does. So the ranks' keys have a prefix that
only they know, and their messages are signed, because the store lists its keys to whoever asks. The secret for both
comes with the assignment, through the agents.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.strict_json import Record, decode, parse_strict_json, strict_json

# Set by the node's agent: index of the node in the allocation, and number of nodes of the gang.
NODE_INDEX_VARIABLE = "DDPSCALE_NODE_INDEX"
NODES_VARIABLE = "DDPSCALE_NODES"
# Where rank 0 hosts the store: ADDRESS:PORT.
STORE_VARIABLE = "DDPSCALE_STORE"
HOST_VARIABLE = "DDPSCALE_HOST"

# Keys per request. A request per key costs three round trips, which for 8,192 ranks takes longer than a block; with
# all keys in one request the store's server parses the long request again with each packet.
KEYS_AT_ONCE = 256
MOST_NAMED = 8
_SIGNATURE_DIGITS = 32  # 128 bits
T = TypeVar("T")


class Control:
    """Messages between ranks, outside of measurements.

    Attributes:
        layout: how ranks are numbered over the nodes.
        store: the store for the rendezvous of process groups.

    Args:
        nodes: number of nodes, with equally many ranks each.
        secret: of the gang.
    """

    def __init__(
        self, store: Store, rank: int, local_rank: int, world_size: int, nodes: int = 1, secret: str = ""
    ) -> None:
        self.store = PrefixStore(_signature(secret, "prefix", b""), store) if secret else store
        self._secret = secret
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self.layout = Layout(nodes, world_size // nodes)
        self._messages = PrefixStore("control", self.store)

    def say(self, key: str, data: Any) -> None:
        """Publish a record, or anything else that is JSON, under a key."""
        message = line_of(data) if isinstance(data, Record) else strict_json(data).encode()
        self._messages.set(key, _signature(self._secret, key, message) + message.decode())

    def hear(self, key: str) -> Any:
        """Wait for a key and return its JSON.

        Raises:
            ValueError: another process than a rank of this gang set it.
            torch.distributed.DistStoreError: it was not set within the store's timeout.
        """
        return parse_strict_json(self._signed(key, self._messages.get(key)))

    def wait_for(self, key: str) -> None:
        """Wait until a key is set. Takes one round trip, while `hear` takes two to return the value.

        Raises:
            torch.distributed.DistStoreError: it was not set within the store's timeout.
        """
        self._messages.wait([key])

    def hear_all(self, keys: Sequence[str], kind: type[T]) -> list[T]:
        """Wait for all keys and return their values, in order.

        Raises:
            ValueError: a value is not of type `kind`, or another process than a rank of this gang set it.
            torch.distributed.DistStoreError: some were not set within the store's timeout; the message names them.
        """
        decoder = msgspec.json.Decoder(kind)
        values_heard: list[T] = []
        for first in range(0, len(keys), KEYS_AT_ONCE):
            some = list(keys[first : first + KEYS_AT_ONCE])
            try:
                values = self._messages.multi_get(some)
            except DistStoreError as error:
                raise DistStoreError(self._silence(keys)) from error
            values_heard += [decode(decoder, self._signed(key, value)) for key, value in zip(some, values, strict=True)]
        return values_heard

    def decided(self, key: str, by_rank_0: Callable[[], Any]) -> Any:
        """The decision of rank 0, as JSON, returned on all ranks. Raises like `hear`."""
        if self.rank == 0:
            self.say(key, by_rank_0())
        return self.hear(key)

    def forget(self, key: str) -> None:
        """Remove a key, so the store does not grow with the rounds."""
        self._messages.delete_key(key)

    def _signed(self, key: str, value: bytes) -> bytes:
        """The message in a value. Raises ValueError if it is not signed with the gang's secret."""
        signature, message = value[:_SIGNATURE_DIGITS], value[_SIGNATURE_DIGITS:]
        if not hmac.compare_digest(signature, _signature(self._secret, key, message).encode()):
            raise ValueError(
                f"{key} in the ranks' store was not written by a rank of this gang: another process on its network "
                "wrote it; find that process, and measure again"
            )
        return message

    def _silence(self, keys: Sequence[str]) -> str:
        missing = [key for key in keys if not self._messages.check([key])]
        named = ", ".join(missing[:MOST_NAMED]) + (", …" if len(missing) > MOST_NAMED else "")
        return f"{len(missing)} of {len(keys)} messages did not come in time: {named}"

    def leave(self) -> None:
        """Leave the store; rank 0, which hosts it, waits until all others have left.

        Raises:
            torch.distributed.DistStoreError: some did not leave within the store's timeout.
        """
        if self._messages.add("left", 1) == self.world_size:
            self._messages.set("all left", "")
        if self.rank == 0:
            self._messages.wait(["all left"])


def _signature(secret: str, key: str, message: bytes) -> str:
    """HMAC (RFC 2104) of a message under a key, hexadecimal."""
    return hmac.digest(secret.encode(), key.encode() + b"\0" + message, "sha256").hex()[:_SIGNATURE_DIGITS]


def rank_of(environ: Mapping[str, str]) -> int:
    """This process's global rank, from its node's index in the allocation; -1 without an agent."""
    try:
        return int(environ[NODE_INDEX_VARIABLE]) * int(environ["LOCAL_WORLD_SIZE"]) + int(environ["LOCAL_RANK"])
    except KeyError:
        return -1


def host_name() -> str:
    """The launcher's name of the node, which a drain command needs, if the agent set it; else the host name."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def connect(timeout: timedelta, secret: str = "") -> Control:
    """Join the gang's store, which rank 0 hosts at the address from the agents.

    It listens on that address only; a socket opened by torch would listen on all interfaces. `secret` is the gang's.

    Raises:
        RuntimeError: not started by torchrun and an agent, or rank 0 cannot listen there.
    """
    try:
        nodes, per_node = int(os.environ[NODES_VARIABLE]), int(os.environ["LOCAL_WORLD_SIZE"])
        local_rank, rank = int(os.environ["LOCAL_RANK"]), rank_of(os.environ)
        address, _, port = os.environ[STORE_VARIABLE].rpartition(":")
    except KeyError as missing:
        raise RuntimeError(f"{missing} is not set: the worker has to be started by torchrun, under an agent") from None
    listener = _listen(address, int(port)) if rank == 0 else None
    store = TCPStore(
        address,
        int(port),
        is_master=rank == 0,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=listener,
    )
    return Control(store, rank, local_rank, nodes * per_node, nodes, secret)


def _listen(address: str, port: int) -> int:
    """Open a socket that listens on one address, for the store to use."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=socket.SOMAXCONN).detach()
    except OSError as error:
        raise RuntimeError(f"rank 0 cannot listen on {address}, port {port} ({error.strerror or error})") from None


def communicator_options(backend: str, *, high_priority: bool = False) -> Any:
    """Options that make torch connect only the members of a group, in its first collective.

    From 2.15 on torch connects all ranks when the default group is created, and splits that communicator on all ranks
    for every further group, members or not: on 64 nodes 192 times for a study of three sizes. Earlier versions behave
    as requested here by default.

    Args:
        high_priority: whether its kernels have priority on the GPU.

    Returns:
        For `dist.init_process_group` and `dist.new_group`; None for the defaults.

    Raises:
        RuntimeError: the backend has no stream priorities.
    """
    if backend != "nccl":
        if high_priority:
            raise RuntimeError(f"{backend} has no stream priority; expected NCCL")
        return None
    is_lazy = hasattr(dist.ProcessGroupNCCL.Options, "lazy_init")
    if not (is_lazy or high_priority):
        return None
    options: Any = dist.ProcessGroupNCCL.Options(is_high_priority_stream=high_priority)
    if is_lazy:
        options.lazy_init = True
    return options


def new_group(ranks: Sequence[int], timeout: timedelta, *, high_priority: bool = False) -> dist.ProcessGroup | None:
    """The process group of some ranks of the gang; None on a rank that is not in it.

    All ranks of the gang create all groups in the same order, because torch names groups by the number created before,
    and the members of a group have to agree on its name. For ranks outside the group this takes microseconds and no
    communication. Groups are destroyed in the same order, because NCCL waits for the other members when it destroys a
    communicator.

    Args:
        timeout: limit for one collective; the default of NCCL is 10 minutes, whatever the default group has.
        high_priority: see `communicator_options`.
    """
    options = communicator_options(dist.get_backend(), high_priority=high_priority)
    group = dist.new_group(ranks=list(ranks), timeout=timeout, pg_options=options)
    return group if isinstance(group, dist.ProcessGroup) else None  # a rank outside gets a placeholder


def process_group_class(device: torch.device) -> str:
    """Class of the default group's backend for a device.

    ``nccl`` is `ProcessGroupNCCL`, or, by default since torch 2.15, `ProcessGroupNCCL2`. Empty if this version of torch
    does not tell.
    """
    try:
        backend = dist.distributed_c10d._get_default_group()._get_backend(device)
    except (AttributeError, RuntimeError):  # names of torch's own that a later version may not have
        return ""
    return type(backend).__name__
