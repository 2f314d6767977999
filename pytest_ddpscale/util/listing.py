"""Names and their numbers: counted, shortened for a sentence, in order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

# A name with a number in its first label, or an IPv4 address: what precedes the number, it, and what follows.
_NUMBERED = re.compile(r"((?:\d+\.){3}|[A-Za-z_][\w-]*?)(\d{1,9})([A-Za-z_-]*(?:\.[A-Za-z][\w.-]*)?)", re.ASCII)
_MOST_SPANS = 8  # in one pair of brackets


def first_few(names: Sequence[str], most: int = 3, separator: str = ", ", count: int | None = None) -> str:
    """The first `most` names and the number of others: ``n1, n2, n3 and 9 more``; `count` is the total, if larger."""
    shown = names[:most]
    others = (len(names) if count is None else count) - len(shown)
    return separator.join(shown) + (f" and {others} more" if shown and others > 0 else "")


def folded(nodes: Collection[str]) -> dict[str, int]:
    """Nodes as pdsh writes them, ``gpu[01-16,18]``, each set with the number of its nodes; in order."""
    sets = defaultdict[tuple[str, str | None], list[list[str]]](list)
    for name in sorted({*nodes}, key=lambda name: (by_number(name), name)):
        part = _NUMBERED.fullmatch(name)
        before, number, after = part.groups() if part else (name, "", None)
        spans = sets[before, after]
        if spans and number == str(int(last := spans[-1][-1]) + 1).zfill(len(last)):
            spans[-1].append(number)
        else:
            spans.append([number])
    by_prefix: dict[str, int] = {}
    for (before, after), spans in sets.items():
        for first in range(0, len(spans), _MOST_SPANS):
            some = spans[first : first + _MOST_SPANS]
            inside = ",".join("-".join(dict.fromkeys((span[0], span[-1]))) for span in some)
            count = sum(map(len, some))
            by_prefix[f"{before}{f'[{inside}]' if count > 1 else inside}{after or ''}"] = count
    return by_prefix


def first_nodes(nodes: Collection[str], most: int = 3) -> str:
    """The first `most` sets of nodes, and the number of other nodes: ``gpu[01-16], login and 9 more``."""
    sets = folded(nodes)
    return first_few([*sets], most, count=min(len(sets), most) + sum([*sets.values()][most:]))


def alike(messages: Mapping[str, str]) -> list[str]:
    """What is said of each node, beginning with its name; once for nodes of which the same is said."""
    nodes = defaultdict[str, list[str]](list)
    for node, text in messages.items():
        # Whole names alone: node1 is not the beginning of node10.
        nodes[re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "\0", text)].append(node)
    return [text.replace("\0", first_nodes(of), 1).replace("\0", of[0]) for text, of in nodes.items()]


def by_number(name: str) -> list[tuple[int, str]]:
    """Sort key that puts node2 before node10."""
    return [(int(part) if at % 2 else 0, part) for at, part in enumerate(re.split(r"(\d+)", name))]


def count_text(number: int, noun: str, plural: str = "") -> str:
    """``1 host``, ``2 hosts``; `plural` if it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def shorten(text: str, width: int, *, has_end: bool = True) -> str:
    """At most `width` characters of `text`: its beginning, and, as that distinguishes names, its end."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2 * has_end
    return f"{text[: max(width - 1 - tail, 0)]}…{text[len(text) - tail :]}"
