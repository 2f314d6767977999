"""What an agent is there for: all that its supervisor tells it before ranks start, as one JSON."""

from __future__ import annotations

import msgspec

from pytest_ddpscale.results.rank_folder import Assignment


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="say", tag="task"):
    """The same for the agents of all nodes; which node it is on an agent knows from its command line.

    Attributes:
        gang_id: by what the gang's processes are found.
        nodes: how many there are.
        ranks_per_node: ranks on each node, one per GPU.
        assignment: what the ranks are to do.
        environment: variables for the ranks, besides those that the agent was started with.
        beat_s: seconds between two words on every rank.
        survey: whether to say first what the node is.
        has_gpus: whether that asks for GPUs.
        post_mortem: whether to look at the GPUs once ranks have failed.
    """

    gang_id: str
    nodes: int
    ranks_per_node: int
    assignment: Assignment
    environment: dict[str, str] = {}
    beat_s: float = 2.0
    survey: bool = False
    has_gpus: bool = True
    post_mortem: bool = False
