"""What a file holds of a record, as JSON types, and run records of few words."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from pytest_ddpscale import __version__
from pytest_ddpscale.families import read_family
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord, ThresholdsUsed
from pytest_ddpscale.run.strict_json import parse_strict_json, strict_json

T = TypeVar("T")


def read_as(kind: type[T], data: Any) -> T:
    """A record of JSON types, as it is read from a file."""
    return msgspec.convert(data, kind, dec_hook=read_family)


def as_json(record: object) -> Any:
    """The JSON types that are read of what is written."""
    return parse_strict_json(strict_json(record))


def run_record(base: RunRecord | None = None, **changes: Any) -> RunRecord:
    """A run.json's content, of JSON types; also with what it would be refused for.

    Args:
        base: changed; default: the least that one says.
        changes: fields; None leaves one out.
    """
    least = RunRecord(sku="cpu", status="finished", started_at="2026-01-31T12:00:00+00:00")
    said = {**as_json(base or least), **as_json(changes)}
    return read_as(RunRecord, {key: value for key, value in said.items() if value is not None})


def begin(run: RunDirectory, sku: str = "cpu", path: object = "thresholds.yaml", **changes: Any) -> None:
    """Write run.json of a run that begins, with the thresholds file at a path."""
    said: dict[str, Any] = {"versions": {"pytest_ddpscale": __version__}, "status": "running", "sku": sku}
    said["thresholds"] = ThresholdsUsed(str(path), "ab" * 32)
    run.write_json(run.run_json, run_record(**said | changes))
