"""The picture of gang, study, round and arm: `python -m docs_pages.gang_picture` writes docs/pictures/gang.svg.

It takes the ranks of each arm from the layout that the ranks themselves use.
"""

from __future__ import annotations

import random
from html import escape
from pathlib import Path

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Arm, ArmKind

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "gang.svg"
TITLE = "One gang of four ranks measures three studies; a study repeats rounds; a round times every arm once"
_RANKS, _ROUNDS, _BATCH = 4, 2, 128
_ARMS: tuple[tuple[ArmKind, int], ...] = (("alone", 1), ("each", 4), ("no_sync", 4), ("ddp", 2), ("ddp", 4))
# Okabe and Ito's colours, which those with any colour vision tell apart; text on them is black.
_COLOURS = dict(zip(_ARMS, ("#E69F00", "#F0E442", "#56B4E9", "#CC79A7", "#2FB58C"), strict=True))
_LEFT, _BLOCK, _LANE, _GAP = 84, 76, 30, 4
_OTHER_STUDY = 80
_STUDY_TOP, _ROUND_TOP, _LANES_TOP = 76, 120, 156


def picture() -> str:
    """The SVG: lanes of ranks from top to bottom, time from left to right, on a ground of its own."""
    rounds = _ROUNDS * len(_ARMS) * _BLOCK
    width = _LEFT + 2 * _OTHER_STUDY + rounds + 16
    bottom = _LANES_TOP + _RANKS * _LANE
    shapes = [
        _band(_LEFT, 30, width - _LEFT - 20, "gang: one launch of torchrun, warm through all studies", "#d9d9d9"),
        _band(_LEFT, _STUDY_TOP, _OTHER_STUDY - _GAP, "probes", "#eeeeee"),
        _band(_LEFT + _OTHER_STUDY, _STUDY_TOP, rounds - _GAP, "study: weak scaling of one workload", "#c6dbef"),
        _band(_LEFT + _OTHER_STUDY + rounds, _STUDY_TOP, _OTHER_STUDY - _GAP, "next study", "#eeeeee"),
        *(_lane(rank, width) for rank in range(_RANKS)),
        *(_round(number) for number in range(_ROUNDS)),
        _text(_LEFT, bottom + 26, "time →  every box is one timed block; an empty lane waits, and its device idles"),
    ]
    inner = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 44}" role="img" '
        f'font-family="sans-serif" font-size="13">\n<title>{TITLE}</title>\n'
        f'<rect width="100%" height="100%" rx="8" fill="#ffffff"/>\n{inner}\n</svg>\n'
    )


def _round(number: int) -> str:
    """A round: its arms in an order of its own, each with the ranks whose turn it is."""
    chance = random.Random(number + 2)  # noqa: S311 - a picture
    arms = chance.sample(_ARMS, len(_ARMS))
    turn = chance.randrange(_RANKS)
    left = _LEFT + _OTHER_STUDY + number * len(_ARMS) * _BLOCK
    width = len(_ARMS) * _BLOCK - _GAP
    blocks = (_block(arm, left + i * _BLOCK, turn) for i, arm in enumerate(arms))
    return "\n".join([_band(left, _ROUND_TOP, width, f"round {number + 1}: arms in random order", "#eeeeee"), *blocks])


def _block(kind_and_size: tuple[ArmKind, int], left: int, turn: int) -> str:
    """One box over the ranks of a group; of ranks that do not communicate, one each."""
    kind, size = kind_and_size
    arm = Arm(kind, size, _BATCH)
    ((*group,),) = Layout(1, _RANKS).groups(arm, turn)
    boxes = [[rank] for rank in group] if kind in ("each", "no_sync") else [group]
    return "\n".join(_box(left, ranks, arm.name, _COLOURS[kind_and_size]) for ranks in boxes)


def _box(left: int, ranks: list[int], name: str, colour: str) -> str:
    top, height = _LANES_TOP + ranks[0] * _LANE, len(ranks) * _LANE - _GAP
    shape = f'<rect x="{left}" y="{top}" width="{_BLOCK - _GAP}" height="{height}" rx="3" fill="{colour}"/>'
    return shape + _text(left + (_BLOCK - _GAP) // 2, top + height // 2 + 4, name, "middle")


def _band(left: int, top: int, width: int, text: str, colour: str) -> str:
    shape = f'<rect x="{left}" y="{top}" width="{width}" height="26" rx="3" fill="{colour}"/>'
    return shape + _text(left + 8, top + 18, text)


def _lane(rank: int, width: int) -> str:
    top = _LANES_TOP + rank * _LANE
    line = f'<line x1="{_LEFT}" x2="{width - 20}" y1="{top + 28}" y2="{top + 28}" stroke="#999999" stroke-width="0.5"/>'
    return line + _text(12, top + 18, f"rank {rank}")


def _text(left: int, top: int, text: str, anchor: str = "start") -> str:
    return f'<text x="{left}" y="{top}" text-anchor="{anchor}" fill="#000000">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
