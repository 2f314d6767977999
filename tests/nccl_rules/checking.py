"""NCCL's rules, held against what all ranks of a gang wrote down.

A communicator is made, used and destroyed by all its members in one order, whatever other communicators they share:
each of these may wait for the other members. Logs are therefore played again as if each did, and every message waited
for its receiver; ranks that then wait for ever have broken a rule. That is stricter than NCCL, which may let a
collective run while the host goes on, and says so with certainty of what gloo lets pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CREATION = "order of creation"
DESTRUCTION = "order of destruction"
COLLECTIVES = "order of collectives"
MESSAGES = "send without its recv"
TIMEOUT = "timeout"
USE_AFTER_DESTROY = "use after destroy"
NEVER_DESTROYED = "never destroyed"

Event = Mapping[str, Any]
Logs = Mapping[int, Sequence[Event]]
# The first of these that ranks wait in says which rule they broke.
_RULES = {"exchange": MESSAGES, "collective": COLLECTIVES, "create": CREATION, "destroy": DESTRUCTION}


@dataclass(frozen=True)
class Violation:
    """A rule that was broken.

    Attributes:
        rule: which.
        message: by whom, where.
    """

    rule: str
    message: str


def read_logs(folder: Path) -> dict[int, list[Event]]:
    """The logs of a gang, by rank."""
    files = {int(file.stem.removeprefix("rank-")): file for file in folder.glob("rank-*.jsonl")}
    return {rank: [json.loads(line) for line in files[rank].read_text().splitlines()] for rank in sorted(files)}


def violations(logs: Logs, timeout_s: float, *, has_failed: bool = False) -> list[Violation]:
    """Which rules a gang has broken.

    Args:
        logs: of all its ranks.
        timeout_s: the gang's limit for one collective.
        has_failed: whether ranks ended, or were ended, in the middle: nobody is then blamed for not having gone on.
    """
    found = [one for rank, log in logs.items() for one in _alone(rank, log, timeout_s, has_failed=has_failed)]
    return found + _order(logs, has_failed=has_failed)


def _alone(rank: int, log: Sequence[Event], timeout_s: float, *, has_failed: bool) -> Iterator[Violation]:
    """What one rank's log shows by itself."""
    open_groups: dict[str, Event] = {}
    for event in log:
        group = event["group"]
        if event["kind"] == "create":
            open_groups[group] = event
            if event["timeout_s"] != timeout_s:
                words = f"has a timeout of {event['timeout_s']:g} s; expected the gang's {timeout_s:g} s"
                yield Violation(TIMEOUT, f"{_named(event)} {words} (rank {rank})")
        elif group not in open_groups:
            yield Violation(USE_AFTER_DESTROY, f"rank {rank}: {_in_words(event)}, which is not there (any more)")
        elif event["kind"] == "destroy":
            del open_groups[group]
            if event["is_left_over"]:
                yield Violation(NEVER_DESTROYED, f"rank {rank} left {_named(event)} to the end of all groups")
    if not has_failed:
        yield from (Violation(NEVER_DESTROYED, f"rank {rank}: {_named(event)}") for event in open_groups.values())


def _order(logs: Logs, *, has_failed: bool) -> list[Violation]:
    """Play the logs; at most one violation, as those that wait for ever hide what comes after."""
    place = dict.fromkeys(logs, 0)
    while ready := _ready(now := {rank: log[place[rank]] for rank, log in logs.items() if place[rank] < len(log)}):
        for rank in ready:
            place[rank] += 1
    waiting = set(now) - (_excused(now) if has_failed else set())
    if not waiting:
        return []
    chain = _chain(now, min(waiting))
    kinds = {now[rank]["kind"] for rank in chain if rank in now}
    rule = next(rule for kind, rule in _RULES.items() if kind in kinds)
    return [Violation(rule, "; ".join(f"rank {rank}: {_in_words(now.get(rank))}" for rank in chain))]


def _ready(now: Mapping[int, Event]) -> set[int]:
    """The ranks whose partners do with them what they do with those, and are ready, too."""
    ready = {rank for rank in now if not _missing(now, rank)}
    while waiting := {rank for rank in ready if not _partners(now[rank], rank) <= ready}:
        ready -= waiting
    return ready


def _excused(now: Mapping[int, Event]) -> set[int]:
    """The ranks that wait for one that has ended, or for one that does."""
    excused: set[int] = set()
    while more := {rank for rank in set(now) - excused if _missing(now, rank) - (set(now) - excused)}:
        excused |= more
    return excused


def _chain(now: Mapping[int, Event], rank: int) -> list[int]:
    """Ranks each of which waits for the next: in a circle, or one for a last one that has ended."""
    chain: list[int] = []
    while rank in now and rank not in chain:
        chain.append(rank)
        rank = min(_missing(now, rank) or _partners(now[rank], rank))
    return chain[chain.index(rank) :] if rank in chain else [*chain[-1:], rank]


def _missing(now: Mapping[int, Event], rank: int) -> set[int]:
    """The partners of a rank that do something else, or have ended."""
    mine = now[rank]
    return {
        other
        for other in _partners(mine, rank)
        if other not in now or _between(now[other], other, rank) != _between(mine, rank, other)
    }


def _partners(event: Event, rank: int) -> set[int]:
    """Whom a rank needs for what it does."""
    is_exchange = event["kind"] == "exchange"
    others = {message["peer"] for message in event["messages"]} if is_exchange else set(event["ranks"])
    return others - {rank}


def _between(event: Event, rank: int, other: int) -> tuple[Any, ...]:
    """What a rank does with another, in such words that the other has to have the same."""
    group = event["kind"], event["group"], event["ranks"]
    if event["kind"] != "exchange":
        return *group, event.get("asked")
    messages = [
        (rank if message["way"] == "send" else other, message["asked"])
        for message in event["messages"]
        if message["peer"] == other
    ]
    return *group, sorted(messages, key=lambda message: message[0])


def _in_words(event: Event | None) -> str:
    if event is None:
        return "has ended"
    if event["kind"] == "exchange":
        messages = ", ".join(f"{one['way']} {one['asked']} with rank {one['peer']}" for one in event["messages"])
        return f"{messages} in {_named(event)}"
    return f"{event.get('asked') or event['kind']} in {_named(event)}"


def _named(event: Event) -> str:
    return f"{event['group']} of ranks {', '.join(map(str, event['ranks']))}"
