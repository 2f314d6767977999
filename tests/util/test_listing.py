"""What a list looks like in a sentence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.launch.hosts import expanded
from pytest_ddpscale.util.listing import alike, first_few, first_nodes, folded
from tests.rows import rows


def test_three_are_shown_and_the_others_counted() -> None:
    names = [f"n{index}" for index in range(9)]
    shown = [first_few(names[:number]) for number in (0, 1, 3, 9)]
    assert shown == ["", "n0", "n0, n1, n2", "n0, n1, n2 and 6 more"]
    assert first_few(["a, b", "c", "d"], most=2, separator="; ") == "a, b; c and 1 more"
    # Not all of them have to be made.
    assert first_few(["a", "b", "c"], count=10**9) == "a, b, c and 999999997 more"
    assert [first_few(one, count=3) for one in (["a"], [])] == ["a and 2 more", ""]


@rows(
    ("nodes", "expected"),
    [
        ("", ""),
        ("n1", "n1"),
        ("n2 n1 n2", "n[1-2]"),
        ("gpu08 gpu09 gpu10 gpu12", "gpu[08-10,12]"),
        ("n9 n10 n01", "n[01,9-10]"),
        ("n0 n1 n00 n01", "n[0,00-01,1]"),
        ("r1n1 r1n2 r2n1 login", "login, r1n[1-2], r2n1"),
        ("a1.site2.org a2.site2.org", "a[1-2].site2.org"),
        ("10.0.0.4 10.0.0.5", "10.0.0.[4-5]"),
        ("2001:db8::1 2001:db8::2", "2001:db8::1, 2001:db8::2"),
        ("a-1 b-1 c-1 c-2 d-1 d-2", "a-1, b-1, c-[1-2] and 2 more"),
        ("n1 n3 n5 n7 n9 n11 n13 n15 n17 n19", "n[1,3,5,7,9,11,13,15], n[17,19]"),
    ],
)
def test_nodes_are_told_as_sets(nodes: str, expected: str) -> None:
    assert first_nodes(nodes.split()) == expected


def test_the_same_is_said_once() -> None:
    refused = "{0}: connect to host {0} port 22: Connection refused (try `ssh {0} true`)"
    apart = {"n3": "n3: no route", "n4": "n4: lacks n41", "n5": "n5: lacks n51"}
    assert alike({node: refused.format(node) for node in ("n1", "n2", "n12")} | apart) == [
        "n[1-2,12]: connect to host n1 port 22: Connection refused (try `ssh n1 true`)", *apart.values(),
    ]  # fmt: skip


NODES = st.from_regex(r"[an](1|0|00)?-?[0-9]{0,3}(b|\.x1)?", fullmatch=True)


@given(st.lists(NODES, max_size=40))
def test_a_set_is_what_the_launchers_read(nodes: list[str]) -> None:
    sets = folded(nodes)
    assert sorted(expanded("", ",".join(sets))) == sorted({*nodes})
    assert sum(sets.values()) == len({*nodes})
