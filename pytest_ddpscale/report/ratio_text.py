"""The ratio between generations beside the throughput that it is counted with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_ddpscale.report import text
from pytest_ddpscale.run.counting import counted_groups
from pytest_ddpscale.run.verdicts import Verdict


def ratio_lines(verdicts: Iterable[Verdict]) -> Mapping[str, Sequence[str]]:
    """By the id of a throughput, each measured ratio that is counted with it.

    ``1.76× a100-sxm4-80gb; bound ≥ 1.64×``, with its own verdict where that is another one.
    """
    found: dict[str, Sequence[str]] = {}
    for lead, *ratios in counted_groups(verdicts):
        if said := [_ratio_text(one, lead) for one in ratios if one.compared is not None]:
            found[lead.id] = said
    return found


def _ratio_text(ratio: Verdict, lead: Verdict) -> str:
    assert ratio.compared is not None  # callers pass only measured ratios
    said = f"{text.point_text(ratio)} {text.one_line(ratio.compared.reference)}; bound {text.bound_text(ratio)}"
    word = text.verdict_word(ratio)
    return said if word == text.verdict_word(lead) else f"{said}: {word}"
