"""Judged run directories of a small site, and key values whose comparison is known beforehand."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Judgement, RunOutcome, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.json_types import run_record
from tests.builders.judged import ALONE_SAMPLES_PER_S, WORKLOAD, make_measurement
from tests.builders.measurements import Measurement
from tests.builders.records import blocks_of, gang_at

SKU = "tested-gpu"
GPUS = 2
VERSIONS = {"torch": "2.14.0", "cuda": "13.0"}
FIRST_NIGHT = datetime(2026, 1, 1, 2, tzinfo=timezone.utc)
ALONE, EACH, DDP = Arm("alone", 1, 4), Arm("each", GPUS, 4), Arm("ddp", GPUS, 4)
STUDY = Study("weak", WORKLOAD, (ALONE, EACH, DDP), FEWEST_ROUNDS, 1.0, 0.0)


def at(night: int) -> str:
    """When the run of a night begins, as run.json has it."""
    return (FIRST_NIGHT + timedelta(days=night)).isoformat(timespec="seconds")


def measurements(
    host: str, samples_per_s: Sequence[float], rounds: int = FEWEST_ROUNDS, first_rank: int = 0
) -> list[Measurement]:
    """All arms of one node.

    Args:
        host: its name.
        samples_per_s: of each of its GPUs; DDP goes at the pace of the slowest.
        rounds: of every arm.
        first_rank: of the node.
    """
    paces = {ALONE: samples_per_s[:1], EACH: samples_per_s, DDP: [min(samples_per_s)] * len(samples_per_s)}
    return [
        make_measurement(
            STUDY.id, arm, number, first_rank + gpu, pace, host=host, local_rank=gpu, device=f"GPU-{host}-{gpu}"
        )
        for arm, found in paces.items()
        for number in range(rounds)
        for gpu, pace in enumerate(found)
    ]


def verdict(outcome: Any = "passed", **changes: Any) -> Verdict:
    """On throughput, of severity fail."""
    fields: dict[str, Any] = {
        "id": f"throughput_per_gpu[{WORKLOAD.name}-{GPUS}gpu]", "metric": "throughput_per_gpu",
        "workload": WORKLOAD.name, "world_size": GPUS, "severity": "fail", "bound": {"at_least": 90.0},
        "outcome": outcome, "value": 100.0, "interval": (99.0, 101.0), "unit": "img/s",
    }  # fmt: skip
    return Verdict(**(fields | changes))


def judged_run(
    path: Path,
    night: int = 0,
    hosts: Mapping[str, Sequence[float]] | None = None,
    *,
    outcome: RunOutcome = "accepted",
    versions: Mapping[str, str] = VERSIONS,
    driver: str | None = None,
    record: Mapping[str, Any] | None = None,
) -> RunDirectory:
    """A run directory with its verdicts.

    Args:
        path: of it.
        night: when it began.
        hosts: img/s of each GPU, by host; default: ``n1``, all alike.
        outcome: of the run.
        versions: that ranks say they have.
        driver: that the survey of each node found; None for no survey.
        record: further keys of run.json.
    """
    told = hosts or {"n1": [ALONE_SAMPLES_PER_S] * GPUS}
    run = RunDirectory.create(path)
    per_node = GPUS if len(told) > 1 else None
    run.write_json(run.plan_json, Plan(SKU, "cuda", (STUDY,), nodes=len(told), ranks_per_node=per_node))
    run.write_json(run.run_json, run_record(run_json(night), **{"id": str(path), **(record or {})}))
    records: list[AnyRecord] = []
    if driver is not None:
        records += [Survey(h, 0.0, versions={"driver": driver, "torch": versions.get("torch")}) for h in told]
    places = [Place(host, gpu, f"GPU-{host}-{gpu}", gpu) for host in told for gpu in range(GPUS)]
    records.append(gang_at(places, device_name="Tested", versions=dict(versions)))
    measured = [measurements(host, pace, first_rank=node * GPUS) for node, (host, pace) in enumerate(told.items())]
    records += blocks_of(sorted((one for node in measured for one in node), key=lambda one: (one.arm, one.round)))
    run.append_records([*records, StudyEnd(STUDY.id, "rounds")])
    conclude(run, outcome, judged_at=at(night), value=min(map(min, told.values())))
    return run


def run_json(night: int = 0) -> RunRecord:
    """Of a finished run."""
    return run_record(sku=SKU, started_at=at(night), argv=["pytest"], versions={"python": "3.11.2"})


def conclude(
    run: RunDirectory, outcome: RunOutcome, judged_at: str, *verdicts: Verdict, value: float = 100.0
) -> Judgement:
    """Write verdicts.json, by default with one verdict, on that throughput."""
    waiver = Waiver("A. Name", "a fan is ordered", date(2026, 12, 31)) if outcome == "accepted_with_waivers" else None
    ends = 0.99 * value, 1.01 * value
    found = verdict(
        "failed" if outcome == "rejected" or waiver else "passed", waiver=waiver, value=value, interval=ends
    )
    basis = {"judged_at": judged_at, **run.digests()}
    judgement = Judgement(SKU, outcome, "because", verdicts or (found,), basis=basis)
    run.write_json(run.verdicts_json, judgement)
    return judgement


def key_value(
    value: float = 100.0, *, gpu_index: int = 0, has_regressed: bool = False, **changes: Any
) -> KeyValue:  # fmt: skip
    """Of GPU 0 of n1."""
    fields: dict[str, Any] = {
        "host": "n1", "gpu": "GPU-n1-0", "metric": "throughput_per_gpu", "subject": "r", "world_size": GPUS,
        "arm": "each", "definition": "d",
    }  # fmt: skip
    return KeyValue(KeyValueSeries(**(fields | changes)), gpu_index, value, "img/s", None, has_regressed)


def stable(random_: random.Random, number: int, sd: float) -> tuple[float, ...]:
    """Values of a place at which nothing changes."""
    return tuple(100.0 * random_.lognormvariate(0.0, sd) for _ in range(number))
