"""The checker by itself: what it finds in logs, and what it lets pass."""

from __future__ import annotations

from typing import Any

from .checking import COLLECTIVES, CREATION, DESTRUCTION, MESSAGES, NEVER_DESTROYED, TIMEOUT, Event, violations

TIMEOUT_S = 60.0
ALL, PAIR = ("all", [0, 1, 2]), ("pair", [0, 1])


def create(group: tuple[str, list[int]], timeout_s: float = TIMEOUT_S) -> Event:
    return {"kind": "create", "group": group[0], "ranks": group[1], "timeout_s": timeout_s}


def destroy(group: tuple[str, list[int]], *, is_left_over: bool = False) -> Event:
    return {"kind": "destroy", "group": group[0], "ranks": group[1], "is_left_over": is_left_over}


def reduce(group: tuple[str, list[int]], numbers: int = 1) -> Event:
    return {"kind": "collective", "group": group[0], "ranks": group[1], "asked": f"allreduce {numbers}"}


def send(peer: int) -> dict[str, Any]:
    return {"way": "send", "peer": peer, "asked": "1"}


def recv(peer: int) -> dict[str, Any]:
    return {"way": "recv", "peer": peer, "asked": "1"}


def batch(*messages: dict[str, Any], group: tuple[str, list[int]] = ALL) -> Event:
    return {"kind": "exchange", "group": group[0], "ranks": group[1], "messages": list(messages)}


def rules(*logs: list[Event], has_failed: bool = False) -> list[str]:
    return [one.rule for one in violations(dict(enumerate(logs)), TIMEOUT_S, has_failed=has_failed)]


def whole(*events: Event) -> list[Event]:
    """Of a rank that did something between the making and the end of the group of all."""
    return [create(ALL), *events, destroy(ALL)]


def in_pair(*events: Event) -> list[Event]:
    return whole(create(PAIR), *events, destroy(PAIR))


def test_ranks_that_agree_keep_the_rules() -> None:
    both = in_pair(reduce(PAIR), reduce(ALL))
    assert rules(both, both, whole(reduce(ALL))) == []


def test_groups_that_are_made_in_another_order() -> None:
    other = [create(PAIR), create(ALL), destroy(PAIR), destroy(ALL)]
    assert rules(in_pair(), other, whole()) == [CREATION]


def test_groups_that_are_destroyed_in_another_order() -> None:
    other = [create(ALL), create(PAIR), destroy(ALL), destroy(PAIR)]
    assert rules(in_pair(), other, whole()) == [DESTRUCTION]


def test_collectives_of_two_groups_in_another_order() -> None:
    """Each group by itself sees the same ones."""
    found = rules(in_pair(reduce(PAIR), reduce(ALL)), in_pair(reduce(ALL), reduce(PAIR)), whole(reduce(ALL)))
    assert found == [COLLECTIVES]


def test_a_collective_that_one_leaves_out_or_that_is_smaller() -> None:
    assert rules(whole(reduce(ALL)), whole(reduce(ALL)), whole()) == [COLLECTIVES]
    assert rules(whole(reduce(ALL)), whole(reduce(ALL, 2)), whole(reduce(ALL))) == [COLLECTIVES]


def test_three_ranks_that_wait_for_each_other_in_a_circle() -> None:
    """No two of them share more than one of these groups."""
    a, b, c = ("a", [0, 1]), ("b", [1, 2]), ("c", [0, 2])

    def log(first: Any, second: Any, *, swapped: bool) -> list[Event]:
        made = [create(group) for group in (a, b, c) if group in (first, second)]
        ended = [destroy(group) for group in (a, b, c) if group in (first, second)]
        used = [reduce(second), reduce(first)] if swapped else [reduce(first), reduce(second)]
        return made + used + ended

    assert rules(log(a, c, swapped=False), log(a, b, swapped=False), log(b, c, swapped=False)) == []
    assert rules(log(a, c, swapped=False), log(a, b, swapped=True), log(b, c, swapped=True)) == [COLLECTIVES]


def test_messages_of_a_batch_go_both_ways_at_once_and_others_wait() -> None:
    assert rules(whole(batch(send(1), recv(1))), whole(batch(recv(0), send(0))), whole()) == []
    one_by_one = whole(batch(send(1)), batch(recv(1))), whole(batch(send(0)), batch(recv(0))), whole()
    assert rules(*one_by_one) == [MESSAGES]


def test_messages_around_a_ring_are_one_batch() -> None:
    ring = [whole(batch(send((rank + 1) % 3), recv((rank - 1) % 3))) for rank in range(3)]
    assert rules(*ring) == []
    assert rules(*ring[:2], whole(batch(send(0)))) == [MESSAGES]


def test_a_send_that_nobody_receives() -> None:
    assert rules(whole(batch(send(1))), whole(), whole()) == [MESSAGES]
    assert rules(whole(batch(send(1))), whole(batch(send(0))), whole()) == [MESSAGES]


def test_a_group_of_another_timeout_and_one_that_is_left_over() -> None:
    late = [create(ALL), create(PAIR, 600.0), destroy(PAIR), destroy(ALL)]
    assert rules(late, late, whole()) == [TIMEOUT, TIMEOUT]
    left = [create(ALL), create(PAIR), destroy(PAIR, is_left_over=True), destroy(ALL)]
    assert rules(left, left, whole()) == [NEVER_DESTROYED, NEVER_DESTROYED]
    assert rules([create(PAIR)], [create(PAIR)]) == [NEVER_DESTROYED, NEVER_DESTROYED]


def test_after_a_failure_nobody_is_blamed_for_waiting_for_who_has_ended() -> None:
    waiting = [create(ALL), create(PAIR), reduce(PAIR)]
    ended = [create(ALL), create(PAIR)]
    logs = waiting, ended, [create(ALL), reduce(ALL)]
    assert rules(*logs, has_failed=True) == []
    assert set(rules(*logs)) == {COLLECTIVES, NEVER_DESTROYED}


def test_after_a_failure_ranks_that_wait_for_each_other_are_still_found() -> None:
    two, other = ("two", [2, 3]), ("other", [2, 3])
    found = rules([create(PAIR)], [], [create(two), create(other)], [create(other), create(two)], has_failed=True)
    assert found == [CREATION]


def test_a_violation_says_who_waits_where() -> None:
    (found,) = violations(dict(enumerate((in_pair(reduce(PAIR)), in_pair(), whole()))), TIMEOUT_S)
    assert found.message == "rank 0: allreduce 1 in pair of ranks 0, 1; rank 1: destroy in pair of ranks 0, 1"
