"""Who ended a gang, or keeps it from going on: gang_failures.txt.

A case is the nodes, then what their agents say, in order: of a rank ``rank 2 steps=3``, ``gone 3``, ``failed 2 TYPE
MESSAGE`` and ``words 1 LINE / LINE NCCL: LINE``, of a node ``exit 1 [1,-9,103,true] code=-9`` and ``up 0 ADDRESS``.
``output`` is the launcher's; ``still RANKS UNHEARD`` asks who holds up a gang that goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_ddpscale.launch.gang_failure import describe, describe_standstill, rank_ends
from pytest_ddpscale.report.words.reasons import say
from tests.builders.launches import News
from tests.tables import assert_approved, each_block

TABLE = Path(__file__).with_name("gang_failures.txt")


def fields(words: list[str]) -> dict[str, Any]:
    """``steps=3 phase=gathering`` as keywords."""
    pairs = (word.partition("=")[::2] for word in words)
    return {name: value if value.isalpha() and value != "true" else json.loads(value) for name, value in pairs}


def told(case: str) -> Iterator[str]:
    """What ended the gang or holds it up, and which ranks ended early."""
    hosts, *said = case.replace("\\n", "\n").replace("\\e", "\x1b").split("; ")
    names, _, ranks = hosts.partition("*")
    news, output = News(*names.split(), ranks_per_node=int(ranks or 2)), list[str]()
    for one in said:
        kind, number, *more = one.split(" ")
        rest = " ".join(more)
        match kind:
            case "up":
                news.say("up", int(number), version="1", addresses=more)
            case "rank":
                news.rank(int(number), **fields(more))
            case "gone":
                news.gone(int(number))
            case "failed":
                news.failed(int(number), more[0], " ".join(more[1:]))
            case "words":
                lines, _, nccl = rest.partition(" NCCL: ")
                node, local_rank = divmod(int(number), 2)
                last = {"lines": lines.split(" / "), "nccl": nccl.split(" / ") if nccl else []}
                news.say("words", node, words={"local_rank": local_rank, **last})
            case "exit":
                ends = [json.loads(word) for word in more if word.startswith("[")]
                news.exit(int(number), *ends, **fields(more[len(ends) :]))
            case "output":
                output = f"{number} {rest}".split(" / ")
            case "still":
                yield from say(describe_standstill(news.roll, rest.split(), int(number))).split("\n")
                return
    yield from say(describe(news.roll, 1, output)).split("\n")
    yield from (f"{one.name} ended with {one.exit_code}" for one in rank_ends(news.roll))


@each_block(TABLE)
def test_who_ended_a_gang(block: str) -> None:
    assert_approved(TABLE, block, told)
