"""The picture of gang, study, arm and round is what the code draws, and can be read by everybody."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

from docs_pages.gang_picture import PICTURE, TITLE, picture

SVG = "{http://www.w3.org/2000/svg}"


def texts() -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture()).iter(f"{SVG}text")]


def test_the_committed_picture_is_up_to_date() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), "write it: python -m docs_pages.gang_picture"


def test_it_has_a_title_and_a_ground_of_its_own() -> None:
    """Black text on it can be read on a dark page, too."""
    root = ElementTree.fromstring(picture())
    assert root.findtext(f"{SVG}title") == TITLE
    assert root[1].attrib["fill"] == "#ffffff"


def test_the_page_tells_in_words_what_it_shows() -> None:
    page = (PICTURE.parents[1] / "explanation.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"!\[([^\]]{100,})\]\(pictures/gang\.svg\)", page)
    for word in ("gang", "studies", "rounds", *(name for name in counted_arms())):
        assert word in told


def counted_arms() -> Counter[str]:
    return Counter(text for text in texts() if re.fullmatch(r"alone|[a-z_]+@\d", text))


def test_a_round_has_every_arm_and_ranks_that_do_not_communicate_a_box_each() -> None:
    assert counted_arms() == {"alone": 2, "each@4": 8, "no_sync@4": 8, "ddp@2": 2, "ddp@4": 2}
