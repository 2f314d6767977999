"""The model of a machine, and what a thresholds file makes of it: expressions, as they stand in values.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan import planner
from pytest_ddpscale.plan.arm import Arm, ArmKind
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate import machine
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.machine import Expectation, Performance, StepTime, model_of
from pytest_ddpscale.simulate.options import ClusterOptions
from pytest_ddpscale.thresholds.model import Requirement, Source
from tests.builders import clusters
from tests.builders.clusters import RESNET, a100, quiet, thresholds, weak_study
from tests.tables import assert_approved, each_block

TABLE = Path(__file__).with_name("values.txt")
QUIET = quiet(a100())
WORKLOAD = weak_study(Arm("alone")).workload
DDP_1_S = 512 / 1189.5  # published under DDP


def row(metric: str, bound: float, published: float | None = None, world_size: Any = 1, **keys: Any) -> Requirement:
    """A requirement on ResNet-152, or on a probe."""
    subject: Any = {} if "probe" in keys else {"workload": RESNET}
    return Requirement(metric, bound, Source(published), world_size=world_size, **subject, **keys)


def cluster(*rows: Requirement) -> SimulatedCluster:
    """A100s of which a file says no more than that."""
    file, sku = thresholds(), a100().sku
    known = file.thresholds.skus
    changed = replace(file.thresholds, skus={**known, sku: replace(known[sku], requirements=rows)})
    return open_cluster(replace(file, thresholds=changed), ClusterOptions(sku))


def expected(*rows: Requirement) -> Expectation:
    return cluster(*rows).performance.expectations[RESNET]


def probed(*rows: Requirement) -> dict[str, float]:
    found = cluster(row("throughput_per_gpu", 9, world_size=8), *rows).performance.probes
    return {probe.name: value for probe, value in found.items()}


def workload(model: str, size: int = 224, **keys: Any) -> Workload:
    return Workload("w", ImageFamily(model, size, **keys), "fp16", 8)


def step(kind: ArmKind, ranks: int, batch: int = 512, performance: Performance = QUIET, **changes: Any) -> StepTime:
    arm = Arm(kind, ranks, batch)
    return performance.step_time(replace(weak_study(arm), **changes), arm)


def exposed_s(ranks: int, computation_s: float, share: float = 1.0) -> float:
    exposed = QUIET.exposed_s(model_of(WORKLOAD), ranks, -(-ranks // 8), np.array(computation_s), share, 1.0)
    return float(exposed)


def step_s(ranks: int, batch: int = 512, **changes: Any) -> float:
    """Of DDP, with what it waits for its messages."""
    alone_s = step("ddp", ranks, batch, **changes).computation_s
    return alone_s + exposed_s(ranks, alone_s)


def told(case: str) -> Iterator[str]:
    """The value of an expression, in six digits, or why it is refused."""
    try:
        found = str(eval(case, {**vars(machine), **vars(planner), **vars(clusters), **globals()}))
    except OptionError as error:
        found = f"refused: {error.found}; {error.expected}. {error.action}"
    yield re.sub(r"\d+\.\d+(e[+-]\d+)?", lambda number: f"{float(number[0]):.6g}", found)


@each_block(TABLE)
def test_it_comes_to(block: str) -> None:
    assert_approved(TABLE, block, told)
