"""What a page gets of a figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Section = Literal["map", "scaling", "step", "telemetry", "profile"]


@dataclass(frozen=True)
class Figure:
    """One picture, or a table or a sentence where that is clearer.

    Attributes:
        id: unique among the figures, for links; also the name of its PNG.
        title: plain text, not escaped; so is `caption`.
        svg: safe markup: SVG or an HTML table, with everything from outside escaped; empty if the caption says it all.
        caption: what the picture shows and how to read it.
        section: the part of the page it belongs to.
        png: makes its PNG; None for what is no picture.
        is_wide: whether it needs a whole line of the page.
    """

    id: str
    title: str
    svg: str
    caption: str
    section: Section
    png: Callable[[], bytes] | None = None
    is_wide: bool = False
