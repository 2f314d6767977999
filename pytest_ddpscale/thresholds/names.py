"""Looks up and checks the entries that rows name: sources, reasons, margins, workloads and families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.form import Margin, NamedMargin, PerCent, WorkloadForm, did_you_mean
from pytest_ddpscale.thresholds.hardware import Text
from pytest_ddpscale.thresholds.layer import Layer, YamlPath, dotted, what_next
from pytest_ddpscale.thresholds.model import Requirement, RequirementKey
from pytest_ddpscale.thresholds.validating import PartError, validated

Rows = dict[RequirementKey, list[Requirement]]


@dataclass(frozen=True)
class Placed:
    """An unchecked part of a file, and its place."""

    layer: Layer
    at: YamlPath
    data: Any

    def checked(self, form: Any) -> Any:
        """The part, validated against a form. Raises PartError."""
        return validated(form, self.data, self.at, self.layer.where, self.layer.path)

    def wrong(self, sentence: str) -> PartError:
        """An error about the whole part."""
        path = self.layer.path
        return PartError(
            ThresholdsError(self.layer.where(self.at), f"{dotted(self.at)}: {sentence}", "", what_next(path))
        )


@dataclass(frozen=True)
class Names:
    """The entries that rows may name; if several files have a name, the nearest one's.

    Attributes:
        entries: by kind (`sources`, `reasons`, `margins`, `workloads` or `families`) and name.
        expanded: requirements of families by name, filled when first needed.
    """

    entries: Mapping[str, Mapping[str, Placed]]
    expanded: dict[str, Rows] = field(default_factory=dict)

    FORMS: ClassVar[dict[str, Any]] = {
        "sources": Text,
        "reasons": Text,
        "margins": Margin,
        "workloads": WorkloadForm,
        "families": list[Any],
    }

    def get(self, kind: str, name: str, by: Placed) -> Any:
        """The entry of a name.

        Raises:
            PartError: it does not exist or is not valid.
        """
        found = self.entries[kind].get(name)
        if found is None:
            near = (
                did_you_mean(name, self.entries[kind]) or f"; expected one of {', '.join(self.entries[kind]) or 'none'}"
            )
            raise by.wrong(f"there is no {name!r} under `{kind}`{near}")
        return self.checked(kind, found)

    def checked(self, kind: str, entry: Placed, form: Any = None) -> Any:
        """An entry, validated against its form. Raises PartError."""
        odd = [error for at, error in entry.layer.odd if at[:2] == entry.at]
        if odd:
            raise PartError(*odd)
        return entry.checked(form or self.FORMS[kind])

    def reason(self, text: str, by: Placed) -> str:
        """The text of `because` or `provisional`, given directly or by name. Raises PartError for a misspelt name."""
        named = self.entries["reasons"].get(text)
        if named is not None:
            return str(self.checked("reasons", named))
        near = "" if " " in text else did_you_mean(text, self.entries["reasons"])
        if near:
            raise by.wrong(f"there is no {text!r} under `reasons`{near}")
        return text

    def margin(self, name: str, by: Placed) -> NamedMargin | float:
        """The margin of this name. Raises PartError."""
        found: NamedMargin | float = self.get("margins", name, by)
        return found

    def metric_margin(self, metric: str) -> float | None:
        """The margin of a metric, in per cent; None without one. Raises PartError."""
        named = self.entries["margins"].get(metric)
        return None if named is None else float(self.checked("margins", named, PerCent))


def names_of(layers: Sequence[Layer]) -> Names:
    """The entries that rows of these files may name; the last file is the nearest. Raises ThresholdsError."""
    entries: dict[str, dict[str, Placed]] = {kind: {} for kind in Names.FORMS}
    for layer in layers:
        for kind, known in entries.items():
            known.update({name: Placed(layer, (kind, name), data) for name, data in layer.section(kind).items()})
    return Names(entries)
