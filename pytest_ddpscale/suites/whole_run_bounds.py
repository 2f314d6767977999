"""Bounds of whole training runs: rows of whole_runs.yaml, each for specific runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.training_run import TrainingRun

PACKAGED = Path(__file__).with_name("whole_runs.yaml")
_Seconds = Annotated[float, Meta(gt=0)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Ranks = Annotated[int, Meta(ge=1)]


class WholeRunBound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row: the runs that it applies to, and their bounds by world size.

    Attributes:
        time_to_train: total time in seconds; the bound is `margin` higher.
        validation_accuracy: accuracy after the last epoch, 0 … 1; the bound is `margin` lower.
        published: key of `sources`; exclusive with `provisional`.
        provisional: why these numbers, if they are not published.
    """

    sku: str
    model: str
    precision: str
    batch: int
    epochs: int
    compile: str = "no"
    data: str
    time_to_train: dict[_Ranks, _Seconds] = msgspec.field(default_factory=dict)
    validation_accuracy: dict[_Ranks, _Share] = msgspec.field(default_factory=dict)
    margin: _Share = 0.0
    published: str = ""
    provisional: str = ""

    def is_about(self, sku: str, run: TrainingRun) -> bool:
        """Whether the row applies to a run on a SKU, at any world size."""
        is_so = self.model, self.precision, self.batch, self.epochs, self.compile, self.data
        work = run.workload
        found = work.family.model, work.precision, work.batch_size, run.epochs, run.compile_mode, run.samples.name
        return self.sku == sku and is_so == found

    def most_s(self, world_size: int) -> float | None:
        """Bound of the total time in seconds; None without a bound."""
        time = self.time_to_train.get(world_size)
        return None if time is None else time * (1 + self.margin)

    def least_accuracy(self, world_size: int) -> float | None:
        """Bound of the validation accuracy; None without a bound."""
        share = self.validation_accuracy.get(world_size)
        return None if share is None else share * (1 - self.margin)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema_version: Literal[1]
    sources: dict[str, str] = {}
    bounds: tuple[WholeRunBound, ...] = ()


def read_whole_run_bounds(path: Path = PACKAGED) -> tuple[WholeRunBound, ...]:
    """All rows of a file, with `published` replaced by the source's text. Raises ThresholdsError if it is invalid."""
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        file = msgspec.convert(data, _File)
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = str(error).splitlines()[0]
        raise ThresholdsError(str(path), said, "bounds as in the packaged whole_runs.yaml") from None
    for row in file.bounds:
        if bool(row.published) == bool(row.provisional) or (row.published and row.published not in file.sources):
            where = f"{path}, {row.sku}, {row.data}"
            raise ThresholdsError(where, "no source of its numbers", "`published`, a key of sources, or `provisional`")
    return tuple(msgspec.structs.replace(row, published=file.sources.get(row.published, "")) for row in file.bounds)
