"""The verdict on the uniformity of a probe: no place is slower than its peers by more than the limit of `peers:`.

The rule is that of `peers`, and times are the inverse of bandwidths. Memory copies are compared among all GPUs of the
run, which are of one model. Host links and pairs of GPUs inside a node differ by position, because of the host's
topology, so their peers are the same local rank, or pair of local ranks, on the other nodes.

Culprits are found as for a bound (`links`): a pair blames its link, unless a GPU is slow with all partners,
and a node whose places are all slow is named as a whole. None is certain if half of the places that should be alike are
beyond: then it is unknown which of them are normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.links import with_probe_culprits
from pytest_ddpscale.judge.peers import Compared, compare
from pytest_ddpscale.judge.probes import JudgedPlace, why_incomplete
from pytest_ddpscale.judge.stats import FAILED, OPEN, PASSED
from pytest_ddpscale.judge.uniformity import verdict_on_places
from pytest_ddpscale.judge.values import Values
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.run.column_record import IntArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import NodeCase


def judge_probe_uniformity(
    blank: Verdict, case: NodeCase, values: Values[JudgedPlace], evidence: Evidence, due: int
) -> Verdict:
    """The verdict on the places of a probe.

    Args:
        blank: the verdict ``not_measured``.
        case: a requirement of `compares_places`.
        values: of its probe, in the unit of the probe's own metric; larger is faster.
        evidence: of the run.
        due: number of rounds that were begun and timed the probe.
    """
    assert case.probe is not None
    missing, there = why_incomplete(case.probe, values, evidence), np.flatnonzero(values.rounds() > 0)
    if not len(there):
        return replace(blank, reason=missing)
    places, bandwidths = [values.places[at] for at in there.tolist()], values.samples[there]
    positions, limit = _positions(case, places), case.requirement.bound - 1
    compared = compare(
        np.divide(1, bandwidths, where=bandwidths > 0, out=np.full(bandwidths.shape, np.nan)).T, limit, positions
    )
    names = [place.name for place in places]
    verdict = verdict_on_places(blank, compared, names, places[0].noun, missing, limit, due)
    if verdict.outcome != "failed":
        return verdict
    is_enough = compared.rounds >= due
    codes = np.select([compared.beyond & is_enough, compared.within & is_enough], [FAILED, PASSED], OPEN)
    verdict = with_probe_culprits(verdict, case.probe, places, codes, np.nanmedian(bandwidths, axis=1), evidence)
    if _most_are_normal(compared, positions):
        return verdict
    return replace(verdict, culprits=tuple(replace(one, is_certain=False) for one in verdict.culprits))


def _positions(case: NodeCase, places: Sequence[JudgedPlace]) -> IntArray:
    """The same number for places that should be alike, (places,)."""
    assert case.probe is not None
    if KINDS[case.probe.operation.kind].peers == "memory":
        return np.zeros(len(places), np.int64)
    ends = np.array([[end.of_rank[1] for end in one.ends] or [0] for one in places], np.int64)
    return np.unique(ends, axis=0, return_inverse=True)[1].reshape(-1)


def _most_are_normal(compared: Compared, positions: IntArray) -> bool:
    """Whether fewer than half of the places of each position are beyond."""
    beyond = np.bincount(positions, compared.beyond)
    return bool((2 * beyond < np.bincount(positions)).all())
