"""What parts of a plan come to, and which are refused with which words: tests/plan/values.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

from pytest_ddpscale.families.image import FEATURES, TORCHVISION_MODELS, ImageFamily
from pytest_ddpscale.plan import arm, layout, metric_catalogue, node_check, operation, workload
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.training_run import SampleSet, TrainingRun
from pytest_ddpscale.plan.workload import Workload
from tests.builders.json_types import as_json, read_as
from tests.builders.workloads import with_settings
from tests.tables import assert_approved, each_block

TABLE = Path(__file__).with_name("values.txt")
WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp32", 8, global_batch_size=16)
FROZEN = Workload("frozen", ImageFamily("vgg16", num_classes=10, classifier_hidden=4096), "fp32", 8)
STUDY = Study("strong", WORKLOAD, (Arm("alone", 1, 16), Arm("ddp", 4, 4)), rounds=5, block_s=1.0, warmup_s=2.0)
PLAN = Plan("cpu", "cpu", (STUDY,), seed=3)
PROBES = ProbeStudy((Arm("matmul-bf16"), Arm("all-reduce-32mib", 8), Arm("all-reduce-32mib", 4)), 16, 0.5)
PAIRS = pair_study("cuda")
MICRO = SampleSet("folder", "micro-224", 12_288, 1_000, 10, "/data/micro-224")
RUN = TrainingRun("micro-224", Workload("vit", ImageFamily("vit_h_14"), "bf16", 128), MICRO, 8, 4, 5)
SMALL = replace(RUN, nodes=1, ranks_per_node=2)


class Tokens(ImageFamily):
    """Another family."""

    unit, samples = "tok", "tokens"


def launched(*launches: int, asked: int = 3) -> Plan:
    return Plan("cpu", "cpu", tuple(replace(STUDY, launch=launch) for launch in launches), launches=asked)


PROBED = replace(
    launched(1, 2), nodes=2, ranks_per_node=2, probes=ProbeStudy((Arm("matmul-fp32"),), 8, 0.1), pairs=PAIRS
)


def of_runs(*runs: TrainingRun, launches: int = 1) -> Plan:
    return Plan("h100", "cuda", (), nodes=8, ranks_per_node=4, training_runs=runs, launches=launches)


def of_families() -> Plan:
    text = replace(WORKLOAD, name="t", family=Tokens("gpt"))
    return Plan("a", "cpu", tuple(Study("weak", one, (), 5, 1.0, 1.0) for one in (WORKLOAD, text, WORKLOAD)))


def read(thing: Any, **changes: object) -> Any:
    """As read from plan.json where these fields have other values."""
    return read_as(type(thing), as_json(thing) | changes)


def refused(make: Callable[..., object], *arguments: object) -> str:
    try:
        return f"no refusal: {make(*arguments)}"
    except ValueError as error:
        return str(error)


NAMES: dict[str, Any] = {"nan": nan, "with_settings": with_settings, **globals()}
for module in (arm, layout, metric_catalogue, node_check, operation, workload):
    NAMES |= vars(module)


def told(case: str) -> Iterator[str]:
    """The value of an expression, or why it is refused."""
    try:
        yield str(eval(case, NAMES))
    except ValueError as error:
        yield f"refused: {error}"


@each_block(TABLE)
def test_what_it_comes_to(block: str) -> None:
    assert_approved(TABLE, block, told)


def test_the_packaged_list_is_torchvisions() -> None:
    import torchvision.models

    assert set(torchvision.models.list_models(module=torchvision.models)) == TORCHVISION_MODELS >= set(FEATURES)
