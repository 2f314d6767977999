"""A requirement, judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pytest_ddpscale.plan.metric import METRICS, Unit
from pytest_ddpscale.results.coverage import Coverage

VerdictOutcome = Literal["passed", "failed", "inconclusive", "not_measured", "error"]
RunOutcome = Literal["accepted", "rejected", "incomplete", "partial"]
VERDICTS_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Culprit:
    """Who is to blame.

    Attributes:
        kind: ``gpu``, ``node`` or ``link``.
        host: host name; of a link that of one end.
        gpu_index: local rank of the device on its host; None for a whole node.
        gpu_uuid: as NVML has it; ``cpu`` without a GPU; None for a whole node.
        evidence: what was seen, in numbers.
        peer_host: host name of a link's other end; None of anything else.
        peer_gpu_index: as `gpu_index`, of that end.
        peer_gpu_uuid: as `gpu_uuid`, of that end.
        is_certain: False if either of two may be the odd one, if it stands out by too little to explain the failure, or
            if most nodes fail alike: no machine is drained for that.
    """

    kind: Literal["gpu", "node", "link"]
    host: str
    gpu_index: int | None
    gpu_uuid: str | None
    evidence: str
    peer_host: str | None = None
    peer_gpu_index: int | None = None
    peer_gpu_uuid: str | None = None
    is_certain: bool = True


@dataclass(frozen=True)
class Verdict:
    """One requirement judged.

    Attributes:
        id: ``metric[workload-8gpu]``, the test item's name.
        metric: name in the catalogue; it fixes `unit`.
        workload: name of the workload.
        world_size: ranks that trained together.
        severity: ``fail`` or ``warn``: whether a failure rejects the run.
        bound: ``{"at_least": x}`` or ``{"at_most": x}``, in `unit`.
        outcome: ``passed``, ``failed``, ``inconclusive``, ``not_measured`` or ``error``.
        value: point estimate, in `unit`; None if nothing was measured.
        interval: confidence interval of the value, in `unit`; None if there is none.
        confidence: of the interval, 0 … 1.
        rounds: how many rounds stand behind it.
        reason: one sentence: why this outcome.
        provisional: the bound has no published source.
        source: where the bound comes from, for the reader.
        notes: what the reader should know, such as ``host-bound``.
        culprits: who is to blame.
    """

    id: str
    metric: str
    workload: str
    world_size: int
    severity: Literal["fail", "warn"]
    bound: dict[str, float]
    outcome: VerdictOutcome
    value: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float = 0.95
    rounds: int = 0
    reason: str = ""
    provisional: bool = False
    source: str = ""
    notes: tuple[str, ...] = ()
    culprits: tuple[Culprit, ...] = ()

    @property
    def unit(self) -> Unit:
        """Unit of value, interval and bound."""
        return METRICS[self.metric].unit

    @property
    def passed(self) -> bool:
        """Only ``passed`` is a pass."""
        return self.outcome == "passed"

    @property
    def bound_value(self) -> float:
        """The bound's number."""
        return next(iter(self.bound.values()))

    @property
    def margin(self) -> float | None:
        """Distance of the value from the bound, relative to the bound: positive on the good side."""
        if self.value is None:
            return None
        difference = self.value - self.bound_value
        return (difference if "at_least" in self.bound else -difference) / self.bound_value

    def as_json(self) -> dict[str, Any]:
        """The verdict as verdicts.json carries it."""
        return asdict(self) | {"unit": self.unit, "margin": self.margin}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Verdict:
        """Read what `as_json` wrote. Raises KeyError or TypeError if it did not."""
        fields = {key: value for key, value in data.items() if key not in {"unit", "margin"}}
        fields["interval"] = tuple(fields["interval"]) if fields["interval"] is not None else None
        fields["notes"] = tuple(fields["notes"])
        fields["culprits"] = tuple(Culprit(**culprit) for culprit in fields["culprits"])
        return Verdict(**fields)


@dataclass(frozen=True)
class Judgement:
    """All verdicts of a run and what they come to: the content of verdicts.json.

    Attributes:
        sku: canonical SKU name.
        outcome: ``accepted``, ``rejected``, ``incomplete`` or ``partial``.
        reason: one sentence: why this outcome.
        verdicts: in the order of the thresholds file.
        notes: what the reader should know about the whole run, such as where it was imported from.
        basis: by which thresholds file, on which measurements and when it was judged, with digests.
        coverage: what of the machine was tested; None of what was concluded before this was kept.
        lacks_only_measurements: whether unmeasured requirements are all that stands in the way. Not in verdicts.json.
    """

    sku: str
    outcome: RunOutcome
    reason: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
    basis: Mapping[str, str] = field(default_factory=dict)
    coverage: Coverage | None = None
    lacks_only_measurements: bool = field(default=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """The content of verdicts.json."""
        return {
            "schema_version": VERDICTS_SCHEMA_VERSION,
            "sku": self.sku,
            "outcome": self.outcome,
            "reason": self.reason,
            "notes": list(self.notes),
            "basis": dict(self.basis),
            "coverage": self.coverage.as_json() if self.coverage else None,
            "verdicts": [verdict.as_json() for verdict in self.verdicts],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Judgement:
        """Read what `as_json` wrote. Raises KeyError or TypeError if it did not."""
        return Judgement(
            sku=data["sku"],
            outcome=data["outcome"],
            reason=data["reason"],
            verdicts=tuple(Verdict.from_json(verdict) for verdict in data["verdicts"]),
            notes=tuple(data["notes"]),
            basis=dict(data["basis"]),
            coverage=Coverage.from_json(data["coverage"]) if data.get("coverage") else None,
        )
