"""Changes of a thresholds file relative to the files it extends, for signers and editors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement, RequirementKey, Sku

# Parts of a SKU besides requirements that change how it is found, measured or judged.
_OTHER_PARTS = ("aliases", "detect", "peak", "node", "beyond_node", "environment")


@dataclass(frozen=True)
class BoundChange:
    """A requirement of a SKU before and after; None where there is none."""

    was: Requirement | None
    now: Requirement | None

    @property
    def either(self) -> Requirement:
        """The present requirement, or the former one if it was removed."""
        requirement = self.now or self.was
        assert requirement is not None
        return requirement

    @property
    def kinds(self) -> tuple[str, ...]:
        """The differences, bound first; severity, provisional standing and baseline may differ too."""
        was, now = self.was, self.now
        if was is None or now is None:
            return ("added",) if was is None else ("removed",)
        kinds = {
            "raised": now.bound > was.bound,
            "lowered": now.bound < was.bound,
            "severity": was.severity != now.severity,
            "standing": was.provisional != now.provisional,
            "baseline": was.one_gpu != now.one_gpu,
        }
        return tuple(kind for kind, differs in kinds.items() if differs)

    @property
    def is_weaker(self) -> bool:
        """Whether a machine meets it more easily than before."""
        if self.was is None:
            return False
        if self.now is None or (self.was.severity, self.now.severity) == ("fail", "warn"):
            return True
        is_ratio = self.was.definition.baseline is not None
        if is_ratio and (self.was.one_gpu, self.now.one_gpu) == ("alone", "ddp"):  # no longer includes DDP's own cost
            return True
        higher = self.now.bound > self.was.bound
        return self.now.bound != self.was.bound and higher == self.was.definition.upper_bound

    def __str__(self) -> str:
        return f"{self.either}: {bound_text(self.was)} → {bound_text(self.now)}"


@dataclass(frozen=True)
class SkuChange:
    """Changes of one SKU.

    Attributes:
        sku: its name.
        bounds: changed requirements; empty if it is new.
        parts: ``new`` if the file below does not have it; descriptions of other changes.
    """

    sku: str
    bounds: tuple[BoundChange, ...] = ()
    parts: tuple[str, ...] = ("new",)

    def __str__(self) -> str:
        """``b200: new``, or what changed besides its bounds."""
        return f"{self.sku}: {'; '.join(self.parts) or 'requirements'}"


def bound_text(requirement: Requirement | None) -> str:
    """``≥ 0.94, provisional, only warns``, or ``not required``."""
    if requirement is None:
        return "not required"
    sign = "≤" if requirement.definition.upper_bound else "≥"
    bound = "must pass" if requirement.check else f"{sign} {requirement.bound:g}"
    provisional = ", provisional" if requirement.provisional and not requirement.check else ""
    one_gpu = ", of ddp@1" if requirement.one_gpu == "ddp" else ""
    warns = ", only warns" if requirement.severity == "warn" else ""
    return f"{bound}{one_gpu}{provisional}{warns}"


def weaker_bounds(file: ThresholdsFile, sku: str) -> tuple[BoundChange, ...]:
    """Requirements that are weaker than in one of the files that a file extends, each once."""
    weaker: dict[str, BoundChange] = {}
    for _, before in _with_sku_below(file, sku):
        for change in _changes(before, file.thresholds.skus[sku]):
            if change.is_weaker:
                weaker.setdefault(str(change.was), change)
    return tuple(weaker.values())


def altered_parts(file: ThresholdsFile, sku: str) -> tuple[str, ...]:
    """Descriptions of other parts of a SKU that differ from one of the files it extends and may affect verdicts."""
    parts: dict[str, None] = {}
    for below, before in _with_sku_below(file, sku):
        parts |= dict.fromkeys(_parts(before, file.thresholds.skus[sku], altering=True))
        parts |= dict.fromkeys(_other_references(below, file, sku))
    return tuple(parts)


def _with_sku_below(file: ThresholdsFile, sku: str) -> list[tuple[ThresholdsFile, Sku]]:
    """Files that a file extends and that have the SKU, each with its version of it."""
    layers = [(below, below.thresholds.skus.get(sku)) for below in reversed(list(file.all_below))]
    return [(below, before) for below, before in layers if before]


def own_bounds(file: ThresholdsFile, sku: str) -> frozenset[RequirementKey]:
    """Requirements that can justify acceptance in this file but not in all files it extends; empty without one."""
    bounds = _accepting(file.thresholds.skus[sku])
    known = [below.thresholds.skus.get(sku) for below in file.all_below]
    return bounds - bounds.intersection(*(_accepting(sku_below) if sku_below else frozenset() for sku_below in known))


def _accepting(sku: Sku) -> frozenset[RequirementKey]:
    return frozenset(
        requirement.key()
        for requirement in sku.requirements
        if requirement.severity == "fail" and not requirement.provisional
    )


def all_changes(file: ThresholdsFile) -> list[SkuChange]:
    """A file's changes of each SKU; empty if it extends no other."""
    below = file.below
    if below is None:
        return [SkuChange(name) for name in file.thresholds.skus if file.extended]
    changes: list[SkuChange] = []
    for name, after in file.thresholds.skus.items():
        before = below.thresholds.skus.get(name)
        if before is None:
            changes.append(SkuChange(name))
            continue
        known = {(requirement.key(), requirement.waiver) for requirement in before.requirements}
        waived = [
            requirement
            for requirement in after.requirements
            if requirement.waiver and (requirement.key(), requirement.waiver) not in known
        ]
        parts = (*_parts(before, after), *(f"{requirement} ({requirement.waiver})" for requirement in waived))
        change = SkuChange(name, tuple(_changes(before, after)), parts)
        if change.bounds or parts:
            changes.append(change)
    return changes


def _changes(before: Sku, after: Sku) -> Iterator[BoundChange]:
    was, now = ({requirement.key(): requirement for requirement in sku.requirements} for sku in (before, after))
    for key in {**was, **now}:
        pair = was.get(key), now.get(key)
        if _judged(pair[0]) != _judged(pair[1]):
            yield BoundChange(*pair)


def _parts(before: Sku, after: Sku, *, altering: bool = False) -> Iterator[str]:
    """Changed parts besides requirements; `altering` leaves out names, and workloads that only one of them has."""
    for part in _OTHER_PARTS:
        if getattr(before, part) != getattr(after, part) and not (altering and part == "aliases"):
            yield f"`{part}`"
    for name in {**before.workloads, **after.workloads}:
        was, now = before.workloads.get(name), after.workloads.get(name)
        if was is not None and now is not None and was != now:
            differences = ", ".join(f"{key} {old} → {new}" for key, (old, new) in was.differences(now).items())
            yield f"what {name} trains ({differences})"
        elif was != now and not altering:
            yield f"`batch` of {name} ({'new' if was is None else 'gone'})"


def _other_references(below: ThresholdsFile, file: ThresholdsFile, sku: str) -> Iterator[str]:
    """Changed reference throughputs of ratios."""
    for requirement in file.thresholds.skus[sku].requirements:
        if requirement.versus is None:
            continue
        with suppress(LookupError):  # the reference is new in this file
            was, now = (layer.thresholds.reference_throughput(requirement)[0] for layer in (below, file))
            if was != now:
                unit = THROUGHPUT_PER_GPU.unit_of(file.thresholds.skus[sku].workloads[requirement.workload].family)
                yield f"throughput of {requirement.versus} that {requirement} is relative to ({was:g} → {now:g} {unit})"


def _judged(requirement: Requirement | None) -> tuple[object, ...] | None:
    return (
        None
        if requirement is None
        else (requirement.bound, requirement.severity, requirement.provisional, requirement.one_gpu)
    )
