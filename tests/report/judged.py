"""Run directories that were measured and judged, as far as `ddpscale culprits` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pytest_ddpscale.run.coverage import TRAINING, Coverage, GpuCoverage, NodeCoverage
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Culprit, Judgement, RunOutcome, Verdict
from tests.builders.json_types import run_record
from tests.builders.records import gang_at

STARTED_UNIX_S = 1_770_000_000


def failed(*culprits: Culprit, metric: str = "weak_scaling_efficiency", **changes: Any) -> Verdict:
    """A requirement that is not kept, of severity `fail`."""
    fields: dict[str, Any] = {
        "id": f"{metric}[resnet152-fp16-8gpu]",
        "metric": metric,
        "workload": "resnet152-fp16",
        "world_size": 8,
        "severity": "fail",
        "bound": {"at_least": 0.96},
        "outcome": "failed",
        "value": 0.71,
        "interval": (0.70, 0.72),
        "reason": "the interval lies below the bound",
        "culprits": culprits,
        "unit": "img/s",
    }
    return Verdict(**(fields | changes))


def write_judged_run(
    path: Path,
    outcome: RunOutcome,
    hosts: Sequence[str],
    verdicts: Sequence[Verdict] = (),
    *,
    started_unix_s: int = STARTED_UNIX_S,
    record: Mapping[str, Any] | None = None,
    tested: Mapping[str, Sequence[str]] | None = None,
    device: str = "GPU-{}",
    records: Sequence[AnyRecord] = (),
) -> Path:
    """A run directory with its verdicts.

    Args:
        path: of it.
        outcome: of the run.
        hosts: that took part.
        verdicts: of its requirements.
        started_unix_s: when it began.
        record: further keys of run.json.
        tested: what tested each host, as `NodeCoverage.tested_by`; default: training.
        device: UUID, with a ``{}`` for the rank.
        records: further ones.
    """
    run = RunDirectory.create(path)
    content = run_record(
        sku="tested-gpu",
        started_at=datetime.fromtimestamp(started_unix_s, timezone.utc).isoformat(timespec="seconds"),
        argv=["pytest", "--gpu-sku=tested-gpu"],
    )
    run.write_json(run.run_json, run_record(content, **dict(record or {})))
    places = [Place(host, 0, device.format(rank)) for rank, host in enumerate(hosts)]
    if places:
        run.append_record(gang_at(places))
    run.append_records(records)
    by = dict.fromkeys(hosts, (TRAINING,)) | {host: tuple(kinds) for host, kinds in (tested or {}).items()}
    nodes = (
        NodeCoverage(host, kinds, gpus=tuple(GpuCoverage(place) for place in places if place.host == host))
        for host, kinds in by.items()
    )
    judgement = Judgement(
        "tested-gpu", outcome, f"why it is {outcome}", tuple(verdicts), basis=run.digests(),
        coverage=Coverage(tuple(nodes)), unfinished=run.read_run().is_unfinished,
    )  # fmt: skip
    run.write_json(run.verdicts_json, judgement)
    return path
