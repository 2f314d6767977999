"""GPUs that were missing while their peers were measured, and what that left undecided."""

from __future__ import annotations

from collections import defaultdict

from pytest_ddpscale.report.words.reasons import said
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.verdicts import Culprit, Judgement


def missing_gpus(judgement: Judgement) -> dict[str, list[Culprit]]:
    """GPUs that were missing while their peers were measured, the longest first, by undecided requirement.

    A verdict that fails for a lost GPU says so itself; these are what its absence left undecided.
    """
    gpus = judgement.coverage.gpus if judgement.coverage is not None else []
    open_ = {v.id for v in judgement.verdicts if v.outcome in ("inconclusive", "not_measured")}
    found: dict[str, list[Culprit]] = defaultdict(list)
    for gpu in sorted(gpus, key=lambda one: -one.rounds_missing):
        why = because("not-measured-with-peers", gpu.rounds_missing)
        for name in open_.intersection(gpu.missing_in):
            found[name].append(Culprit("gpu", (gpu.place,), why, is_certain=False, evidence=said(why)))
    return found
