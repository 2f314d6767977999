"""What a thresholds file comes to: requirements as cases, plans and expectations of nodes, a case of compiled.txt each.

    EDITS                    edits of base.yaml (see `edited`), whose SKUs are then measured on 2 nodes of 8 ranks
    on | 4x8 | EDITS         on 4 nodes of 8 ranks, and compared with base.yaml there
    on | 4x8                 compared with 2 nodes of 8 ranks

Told is what differs from base.yaml: what it has not (-), what it has not alike (~), and what is new (+); of ``on | 2x8
all`` everything, in its order. Of fields that have their usual value nothing is told.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import PACES
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.session.open import Site, Subject
from pytest_ddpscale.settings import Settings
from pytest_ddpscale.thresholds.cases import (
    AnyCase,
    cases_for,
    device_type,
    expected_by,
    nightly_uniformity,
    node_expectation,
    plan_of_cases,
    training_cases,
)
from pytest_ddpscale.thresholds.changes import all_changes, own_bounds
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.waiver import today
from tests.tables import assert_approved, each_block
from tests.thresholds.edited import edited

TABLE = Path(__file__).with_name("compiled.txt")
USUAL = "2x8"
Told: TypeAlias = dict[str, list[str]]
# Not told: what is in the name of a case, is told of its SKU, or is the same for every row here.
TOLD_ELSEWHERE = ("metric", "check", "requirement", "requirements", "expected", "peers", "is_site", "world_size")


@each_block(TABLE)
def test_what_a_file_comes_to(block: str, tmp_path: Path) -> None:
    def tell(case: str) -> Iterator[str]:
        edits = case.split(" | ")
        path, besides = edited(tmp_path, edits)
        layout, *everything = besides.get("on", USUAL).split()
        now = dict(_told(path, layout))
        base = dict(_told(edited(tmp_path, [])[0], layout if edits[2:] or not besides else USUAL))
        skus = {key.partition(" ")[0] for key in now}
        for line in _differences({} if everything else base, now, skus):
            line = re.sub(r"\d{4}-\d\d-\d\d", _in_days, line.replace(f"{tmp_path}/", ""))
            yield line.replace("where=base.yaml", "").rstrip()

    assert_approved(TABLE, block, tell)


def _differences(base: Told, now: Told, skus: Collection[str]) -> Iterator[str]:
    yield from (f"- {key}" for key in base if key not in now and key.partition(" ")[0] in skus)
    for key, facts in now.items():
        before = base.get(key, [])
        names = {fact.partition("=")[0] for fact in facts}
        gone = [f"no {name}" for name in (fact.partition("=")[0] for fact in before) if name not in names]
        new = [fact for fact in facts if fact not in before]
        if key not in base or new or gone:
            yield f"{'~' if key in base else '+'} {key} {' '.join((*new, *gone))}"


def _told(path: Path, on: str) -> Iterator[tuple[str, list[str]]]:
    file, layout = load_thresholds(path), Layout(*map(int, on.split("x")))
    for name, sku in file.thresholds.skus.items():
        yield f"{name} is", list(_facts(sku))
        cases, device = cases_for(file, name, layout), device_type(sku)
        yield from ((f"{name} {case.id}", list(_of_case(case))) for case in cases)
        measurable = [case for case in cases if not case.missing and case.world_size <= layout.world_size]
        plan = Plan(name, device, (), nodes=layout.nodes, ranks_per_node=layout.ranks_per_node)
        plan = plan_of_cases(plan, measurable, PACES[device])
        yield from ((f"{name} trains {study.id}", [arm.name for arm in study.arms]) for study in plan.studies)
        yield f"{name} each night", [case.id for case in nightly_uniformity(cases)]
        yield f"{name} nodes", list(_facts(expected_by(plan, node_expectation(sku))))
        subject = Subject(Site(Settings(), path.parent, path.parent), file, name)
        yield from ((f"{name} lowered {one.requirement}", list(_facts(one))) for one in subject.lowered)
        yield f"{name} altered", list(subject.altered)
        yield (
            f"{name} accepts by",
            sorted(case.id for case in cases if case.requirement.key() in own_bounds(file, name)),
        )
    for change in all_changes(file):
        yield f"{change.sku} changed", list(change.parts)
        yield from ((f"{change.sku} changed {one.either}", list(map(str, one.kinds))) for one in change.bounds)


def _of_case(case: AnyCase) -> Iterator[str]:
    one = case.requirement
    yield from _facts(one, without=("workload", "probe", "" if one.source.is_site else "source"))
    yield f"ranks={case.world_size}"
    yield from _facts(case, without=("workload", "where", "name", "environment"))
    if one.smallest_fault is not None:
        yield f"fault={one.smallest_fault:.3g}"
    yield from ("arms=" + "+".join(arm.name for arm in one.question.arms) for one in training_cases([case]))


def _facts(one: Any, name: str = "", without: Sequence[str] = ()) -> Iterator[str]:
    """``NAME=VALUE`` of each field that has not its usual value."""
    if isinstance(one, BaseModel):
        one = one.model_dump(exclude_defaults=True)
    elif is_dataclass(one):
        told = {field.name: (getattr(one, field.name), field.default) for field in fields(one)}
        one = {key: value for key, (value, usual) in told.items() if value != usual}
    if not isinstance(one, Mapping):
        one = sorted(one) if isinstance(one, frozenset) else one
        yield f"{name}={one:.12g}" if isinstance(one, float) else f"{name}={one}"
        return
    for key, value in one.items():
        if key not in (*without, *TOLD_ELSEWHERE) and value not in ({}, ()):
            yield from _facts(value, f"{name}.{key}".removeprefix(".source").removeprefix("."))


def _in_days(day: re.Match[str]) -> str:
    return f"DAY+{(date.fromisoformat(day[0]) - today()).days}"
