"""The answer to a requirement while it is found; the verdict is made of it once, at the end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ddpscale.judge.stats import ABSENT, FAILED, IMPOSSIBLE, OPEN, PASSED
from pytest_ddpscale.run.place import Culprit
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.verdicts import AgainstSlowest, Flag, GenerationComparison, Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.cases import AnyCase

OUTCOMES: dict[int, VerdictOutcome] = {
    PASSED: "passed", FAILED: "failed", OPEN: "inconclusive", IMPOSSIBLE: "error", ABSENT: "not_measured",
}  # fmt: skip


@dataclass(eq=False)
class Answer:
    """What is found of a requirement as a whole; attributes are those of `Verdict`, with reasons instead of sentences.

    Attributes:
        blank: the verdict ``not_measured``.
        reasons: why it has its outcome, the main one first.
        remarks: notes.
    """

    blank: Verdict
    outcome: VerdictOutcome = "not_measured"
    reasons: list[Reason] = field(default_factory=list)
    value: float | None = None
    interval: tuple[float, float] | None = None
    rounds: int = 0
    place: str = ""
    remarks: list[Reason] = field(default_factory=list)
    culprits: list[Culprit] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    correlation: float | None = None
    against_slowest: AgainstSlowest | None = None
    compared: GenerationComparison | None = None

    def verdict(self) -> Verdict:
        """The verdict."""
        found: dict[str, Any] = {n: tuple(one) if isinstance(one, list) else one for n, one in vars(self).items()}
        why = because("all", *self.reasons) if len(self.reasons) > 1 else next(iter(self.reasons), None)
        del found["blank"], found["reasons"]
        return replace(self.blank, because=why, **found)


def blank_verdict(case: AnyCase, confidence: float) -> Verdict:
    """The verdict ``not_measured`` on a requirement, with the fields of its line in thresholds.yaml."""
    requirement = case.requirement
    return Verdict(
        id=case.id,
        metric=requirement.metric,
        workload=requirement.subject,
        world_size=case.world_size,
        severity=requirement.severity,
        bound={requirement.definition.bound_key: requirement.bound},
        outcome="not_measured",
        confidence=confidence,
        provisional=requirement.provisional,
        source=requirement.source_text,
        placement=requirement.placement,
        published=requirement.source.measured,
        one_gpu=requirement.one_gpu if requirement.times_one_gpu else None,
        unit=case.unit,
    )
