r"""Thresholds files as a line of a table says them: base.yaml with edits, or a file that extends it.

PLACE | TEXT | PLACE | TEXT …    edits, one after another; in a text \n begins a line, SIGNED is who and why of a
                                 change, DAY+30 the day in 30 days, and «%d, »9 nine times this, counted from 0
row, new, top                    a further row of the SKU `new`, a further key of it, or of the last file
site, nearer                     keys of the SKU `new` in a file that extends base.yaml, or in one that extends site
file                             all of base.yaml
ask, on                          no edits: what --gpu-sku asks for, and nodes x ranks
any other place                  a text that is once in base.yaml, and is replaced
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from pytest_ddpscale.thresholds.waiver import today

BASE = Path(__file__).with_name("base.yaml").read_text(encoding="utf-8")
SITE = "schema_version: 2\nextends: {}.yaml\nskus:\n  new:\n    {}\n"
APPENDED = {"row": "      - {{{}}}\n", "new": "    {}\n", "top": "{}\n"}
SPELT = {r"\n": "\n", r"\t": "\t", r"\a": "\a", "SIGNED": "who: A. Name, why: our switch is old"}


def edited(folder: Path, edits: Sequence[str]) -> tuple[Path, dict[str, str]]:
    """The last of the files that edits make, and what is said besides."""
    texts, besides = {"base": BASE}, dict[str, str]()
    for place, text in zip(edits[::2], map(spelt, edits[1::2]), strict=True):
        last = list(texts)[-1]
        if place in ("site", "nearer"):
            texts[place] = SITE.format(last, text)
        elif place in APPENDED:
            texts[last] += APPENDED[place].format(text)
        elif place in ("ask", "on"):
            besides[place] = text
        elif place == "file":
            texts[last] = text
        else:
            old = spelt(place)
            assert texts["base"].count(old) == 1, f"{old!r} is there {texts['base'].count(old)} times"
            texts["base"] = texts["base"].replace(old, text)
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / f"{list(texts)[-1]}.yaml", besides


def spelt(text: str) -> str:
    """A text as it is meant."""
    for written, meant in SPELT.items():
        text = text.replace(written, meant)
    text = re.sub(r"DAY\+(-?\d+)", lambda found: str(today() + timedelta(int(found[1]))), text)
    return re.sub("(?s)«(.*?)»([0-9]+)", _repeated, text)


def _repeated(found: re.Match[str]) -> str:
    return "".join(found[1].replace("%d", str(number)) for number in range(int(found[2])))
