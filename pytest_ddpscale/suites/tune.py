"""`ddpscale tune`: which settings make a workload train faster on these nodes, and by how much.

Each setting is an arm of its own, in interleaved rounds with the usual settings in one gang. An apparent gain is
measured again in further launches of new processes, together with gangs that set environment variables: launches differ
by more than their rounds show, so a gain is the mean over those launches, with its interval.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import MemoryFormat
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.plan.arm import DATA_SETTINGS, USUAL, Arm, CommunicationHook, CompileMode, Variant
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.words import DeviceType, Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.table import GrowingColumns
from pytest_ddpscale.settings import read_value
from pytest_ddpscale.suites.engine import (
    OF_TRAINING,
    Measured,
    MeasuredSuite,
    Suite,
    SuiteNodes,
    geometric_mean_estimate,
)
from pytest_ddpscale.suites.nccl_variables import NCCL_VARIABLES
from pytest_ddpscale.suites.options import MOST_BATCH, MOST_PIXELS, PRECISIONS, whole, workload_of
from pytest_ddpscale.suites.results import Column, Results, Row, Rows, cell, ends
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.document import Line, Listing, Section

if TYPE_CHECKING:
    from pytest_ddpscale.launch.supervisor import Judge

# The first finds apparent gains, the others confirm them.
LAUNCHES = 5
USUAL_NAME = "usual"
# On GPUs. CPUs keep the default pace, because their rounds are long and rarely decide early.
MOST_ROUNDS = 16
# A smaller difference is not worth a change, so further rounds are not needed.
WORTH = 0.01
BATCH = "batch_size"
_VARIABLE = re.compile("[A-Z_][A-Z0-9_]*")
_WORDS: dict[str, Sequence[str]] = {
    "hook": get_args(CommunicationHook), "precision": get_args(Precision), "memory_format": get_args(MemoryFormat),
    "compile": get_args(CompileMode),
}  # fmt: skip
# Tried without --try: several values for each name.
USUAL_SETTINGS: dict[DeviceType, str] = {
    "cuda": "bucket_cap_mb=5,50,100 gradient_as_bucket_view=true static_graph=true broadcast_buffers=false "
    "high_priority_stream=true precision=fp32,fp16,bf16 memory_format=channels_last,contiguous fused_optimizer=true "
    "compile=default,reduce-overhead accumulation_steps=2,4 batch_size=half,double hook=fp16,bf16,powersgd "
    "uneven_share=0.1 NCCL_ALGO=Ring,Tree NCCL_BUFFSIZE=8388608 NCCL_MIN_NCHANNELS=16 TORCH_DIST_USE_NCCL2=0,1",
    "cpu": "bucket_cap_mb=5 gradient_as_bucket_view=true static_graph=true broadcast_buffers=false precision=bf16 "
    "memory_format=channels_last fused_optimizer=true accumulation_steps=4 batch_size=double",
}
_RATIO = "{:.3f}×"
_CHANGES_BATCH = "changes the global batch"
_SHARE = "{:+.1%}"
_HOW = (
    "Throughput with each setting over that without it. A gain counts if further launches confirm it, all gains "
    f"together with the requested confidence, and if it is at least {100 * WORTH:g} %. Gains do not add up: measure "
    "again."
)
_RULES = (
    "{name}: the global batch is {batch} in place of {usual}. Multiply the learning rate by {factor:.3g} (linear rule: "
    "SGD, arXiv:1706.02677, with a warm-up of some epochs) or by {root:.3g} (square root: Adam and its kind, "
    "arXiv:2205.10287)."
)
_COLUMNS = [
    Column("setting", "Setting"), Column("first_launch", "First launch", _RATIO),
    Column("further_launches", "Further launches", _RATIO), Column("says", "Says"), Column("note", "Note"),
]  # fmt: skip


class Tune(Suite):
    """Search for faster settings."""

    name = "tune"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for the workload and the settings to try."""
        add = adder(parser)
        add("--workload", "NAME", str, "workload of the SKU; default: its first")
        add("--model", "MODEL", str, "torchvision model instead; needs --precision and --batch")
        parser.add_argument("--precision", choices=PRECISIONS, help="of --model")
        add("--image-size", "PIXELS", whole(MOST_PIXELS), "default: the workload's")
        add("--batch", "N", whole(MOST_BATCH), "images per GPU; default: the workload's")
        parser.add_argument("--try", dest="tried", metavar='"NAME=V1,V2 …"',
            help=f"settings; a name in capitals is an environment variable. Default on GPUs: {USUAL_SETTINGS['cuda']}. "
                 f"CPU: {USUAL_SETTINGS['cpu']}")  # fmt: skip

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan the first launch: a study of two arms for each setting."""
        workload, tried = _tried(arguments, nodes)
        rounds = nodes.settings.rounds or (nodes.pace.rounds if nodes.is_cpu else MOST_ROUNDS)
        studies = (_study(one, nodes, workload, rounds) for one in tried if not one.environment)
        return nodes.plan(studies, launches=LAUNCHES)

    def judge_of(self, plan: Plan, nodes: SuiteNodes) -> Judge | None:
        """End a study as soon as it shows a difference, or that there is none worth a change."""
        return TuneJudge(plan, nodes.settings.confidence)

    def further(self, arguments: argparse.Namespace, nodes: SuiteNodes, measured: MeasuredSuite) -> Plan | None:
        """Plan further launches for apparent gains and environment variables."""
        workload, tried = _tried(arguments, nodes)
        again = [replace(study, rounds=FEWEST_ROUNDS) for study in promising(measured)]
        if variables := [one for one in tried if one.environment]:
            again += [_study(one, nodes, workload, FEWEST_ROUNDS) for one in (Candidate(), *variables)]
        launches = range(2, LAUNCHES + 1)
        # Reverse the order in every other launch, so that no gang always follows the same one.
        studies = [replace(one, launch=n) for n in launches for one in (again if n % 2 else again[::-1])]
        return nodes.plan(studies, launches=LAUNCHES) if studies else None

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each setting, the largest confirmed gain first."""
        plan, tried = measured.plan, tried_settings(measured)
        rows = [row for _, row in tried]
        chosen = [(one, row) for one, row in tried if row["is_recommended"]]
        usual = (measured.why_missing(one.id) for one in plan.studies if candidate_of(one) == Candidate())
        why_not = next(filter(None, usual), "")
        problems = [f"usual settings: {why_not}"] * bool(why_not)
        problems += [f"{row['setting']}: {row['why_missing']}" for row in rows if row["why_missing"]]
        gains = ", ".join(f"{row['setting']} ({_gain(row['further_launches'])})" for _, row in chosen)
        many = f"{len(rows)} settings"
        said = f"{len(chosen)} of {many} are faster: {gains}" if chosen else f"none of {many} is shown to be faster"
        variables = exports(one for one, _ in chosen)
        more = [Section("With these settings", [*map(Line, _advice(chosen, plan)), Listing(variables)])] * bool(chosen)
        names = [row["setting"] for _, row in chosen]
        values = {"recommended": names, "snippet_environment": variables}
        table = Rows("tune", "Settings", _COLUMNS, rows, notes=[_HOW])
        return Results("Tuning", [said], [table], problems, more=more, values=values)


@dataclass(frozen=True)
class Candidate:
    """One setting to try.

    Attributes:
        variant: settings of an arm.
        environment: variables by name, set for a gang of its own.
    """

    variant: Variant = USUAL
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """``bucket_cap_mb=5``, ``batch_size=64``, ``NCCL_ALGO=Ring``."""
        return ",".join(filter(None, [self.variant.name, *(f"{name}={value}" for name, value in self.environment)]))

    def arm(self, world_size: int, batch_size: int) -> Arm:
        """The arm that measures it, for a workload with this per-GPU batch."""
        of_pass = self.variant.batch_size or batch_size
        return Arm("ddp", world_size, of_pass * self.variant.accumulation_steps, variant=self.variant)

    @property
    def changes_training(self) -> str:
        """What the setting changes in training besides speed; empty if nothing."""
        if self.variant.batch_size is not None or self.variant.accumulation_steps > 1:
            return _CHANGES_BATCH
        if self.variant.hook is not None:
            return "changes training: gradients are sent with fewer bits"
        if self.variant.precision is not None:
            return "changes the precision"
        return "not a setting: shows the cost of uneven batches" if self.variant.uneven_share else ""

    def note(self, device_type: DeviceType) -> str:
        """A remark on its result; empty without one."""
        is_unread = device_type == "cpu" and any(name.startswith("NCCL_") for name, _ in self.environment)
        return "without effect: gloo reads no NCCL variable" if is_unread else self.changes_training


def candidates(text: str, workload: Workload) -> list[Candidate]:
    """Parse ``name=value,value name=value``; each candidate once, without the workload's own settings.

    Raises:
        ValueError: a word is not a setting; the message names it and what is expected.
    """
    found = [one for word in text.split() for one in _of_word(word, workload)]
    for one in found:
        one.arm(1, workload.batch_size)  # raises if it cannot be trained
    return [one for one in dict.fromkeys(found) if one != Candidate() and not _is_as_the_workload(one, workload)]


def _is_as_the_workload(one: Candidate, workload: Workload) -> bool:
    """Whether a candidate equals the workload's own settings."""
    of_workload = Variant(
        precision=workload.precision, memory_format=workload.family.memory_format, batch_size=workload.batch_size,
        compile="default" if workload.compile else "no",
    )  # fmt: skip
    names = ("precision", "memory_format", "batch_size", "compile")
    blank: dict[str, Any] = dict.fromkeys(names)
    others = replace(one.variant, **blank) != USUAL or bool(one.environment)
    return not others and all(getattr(one.variant, n) in (None, getattr(of_workload, n)) for n in names)


def _of_word(word: str, workload: Workload) -> Iterator[Candidate]:
    name, equals, values = word.partition("=")
    if not equals or not values:
        raise ValueError(f"name=value, not {word!r}")
    for value in values.split(","):
        if _VARIABLE.fullmatch(name):
            if name.startswith("NCCL_") and name not in NCCL_VARIABLES:
                raise ValueError(f"variables that NCCL knows; it does not know {name}" + _meant(name, NCCL_VARIABLES))
            yield Candidate(environment=((name, value),))
        elif name == BATCH:
            yield Candidate(Variant(batch_size=_batch(value, workload)))
        else:
            yield Candidate(Variant(**{name: _value(name, value)}))


def _meant(name: str, *known: Iterable[str]) -> str:
    near = [one for names in known for one in difflib.get_close_matches(name, names, 1)]
    return f" (perhaps {near[0]})" if near else ""


def _batch(value: str, workload: Workload) -> int:
    relative = {"half": max(1, workload.batch_size // 2), "double": 2 * workload.batch_size}
    if value in relative:
        return relative[value]
    if not re.fullmatch("[0-9]{1,6}", value) or not int(value):
        raise ValueError(f"{BATCH} as a number, half or double, not {value!r}")
    return int(value)


def _value(name: str, value: str) -> Any:
    """Parse the value of a field of `Variant`. Raises ValueError."""
    usual = {one.name: one.default for one in fields(Variant) if one.name not in DATA_SETTINGS}
    if name not in usual:
        near = _meant(name, usual) or _meant(name.upper(), NCCL_VARIABLES)
        raise ValueError(f"settings such as {', '.join(usual)}; {name!r} is not one of them" + near)
    if name in _WORDS:
        if value not in _WORDS[name]:
            raise ValueError(f"{name} as one of {', '.join(_WORDS[name])}, not {value!r}")
        return value
    if isinstance(usual[name], bool):
        if value not in ("true", "false"):
            raise ValueError(f"{name} as true or false, not {value!r}")
        return value == "true"
    try:
        return int(value) if name == "accumulation_steps" else float(value)
    except ValueError:
        raise ValueError(f"{name} as a number, not {value!r}") from None


def exports(chosen: Iterable[Candidate]) -> str:
    """Environment variables as shell commands; of two values of one variable the first, of the largest gain."""
    variables = {name: value for one in reversed([*chosen]) for name, value in one.environment}
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def _tried(arguments: argparse.Namespace, nodes: SuiteNodes) -> tuple[Workload, list[Candidate]]:
    """The workload to tune, and the settings to try. Raises OptionError."""
    device_type, pixels, sku = nodes.subject.device_type, arguments.image_size, nodes.subject.sku
    of_sku = nodes.subject.thresholds.thresholds.skus[sku]
    if arguments.model is not None:
        if arguments.precision is None or arguments.workload is not None or arguments.batch is None:
            expected = "--precision and --batch as well, and no --workload"
            raise OptionError("--model", f"found {arguments.model!r}", expected)
        workload = workload_of(of_sku, arguments.model, arguments.precision, pixels, device_type)
    else:
        name = arguments.workload or next(iter(of_sku.workloads), "")
        if name not in of_sku.workloads:
            known = ", ".join(of_sku.workloads) or "none: --model"
            raise OptionError("--workload", f"found {name!r}", f"one of {known}")
        workload = of_sku.workloads[name]
        workload = replace(workload, family=workload.family.sized(pixels))
    # `suite input-pipeline` measures the cost of loading.
    workload = replace(workload, batch_size=arguments.batch or workload.batch_size, data="synthetic")
    asked = USUAL_SETTINGS[device_type] if arguments.tried is None else arguments.tried
    tried = read_value("--try", asked, lambda text: candidates(text, workload))
    if not tried:
        raise OptionError("--try", f"found {asked!r}", "a setting that the workload does not have already")
    return workload, tried


def _study(one: Candidate, nodes: SuiteNodes, workload: Workload, rounds: int) -> Study:
    """A study of a setting beside the usual ones; environment variables and their baseline get a gang of their own."""
    usual = Candidate().arm(nodes.world_size, workload.batch_size)
    is_alone = one == Candidate() or bool(one.environment)
    arms = (usual,) if is_alone else (usual, one.arm(nodes.world_size, workload.batch_size))
    named = replace(workload, name=f"{workload.name}+{one.name or USUAL_NAME}")
    return nodes.study(named, arms, rounds, environment=one.environment)


def candidate_of(study: Study) -> Candidate:
    """The setting that a study tries, from its arms and environment."""
    return Candidate(study.arms[-1].variant, study.environment)


def _is_gain(found: Found | None) -> bool:
    """Whether it is shown to be faster, by what is worth a change."""
    return found is not None and found.interval is not None and found.interval[0] > 1 and found.value >= 1 + WORTH


def promising(measured: MeasuredSuite) -> list[Study]:
    """Studies of the first launch with a gain worth a change, to be measured again."""
    studies = [one for one in measured.plan.studies if one.launch == 1 and len(one.arms) > 1]
    return [one for one in studies if _is_gain(measured.throughput(one, one.arms[1], one.arms[0]))]


def tried_settings(measured: MeasuredSuite) -> list[tuple[Candidate, dict[str, Any]]]:
    """A row for each setting of the plan, the largest confirmed gain first.

    The intervals of all confirmed settings hold together with the requested confidence (Bonferroni). Other launches
    than these decided which settings to confirm.
    """
    of_candidate: dict[Candidate, list[Study]] = {}
    for study in measured.plan.studies:
        of_candidate.setdefault(candidate_of(study), []).append(study)
    usual = of_candidate.pop(Candidate(), [])
    again = sum(any(study.launch > 1 for study in studies) for studies in of_candidate.values())
    confidence, found = 1 - (1 - measured.confidence) / max(1, again), []
    for candidate, studies in of_candidate.items():
        first = next((study for study in studies if study.launch == 1), None)
        screened = measured.throughput(first, first.arms[1], first.arms[0]) if first is not None else None
        ratios = [_launch_ratio(measured, study, usual) for study in studies if study.launch > 1]
        there = [ratio for ratio in ratios if ratio is not None]
        confirmed = geometric_mean_estimate(there, confidence) if len(there) > 2 else None
        why = next(filter(None, (measured.why_missing(study.id) for study in studies)), "")
        row = {
            "setting": candidate.name, "first_launch": screened, "further_launches": confirmed,
            "says": _says(screened, confirmed, why), "note": candidate.note(measured.plan.device_type),
            "changes": candidate.changes_training, "why_missing": why, "is_gain": _is_gain(confirmed),
            # Uneven batches are not a setting.
            "is_recommended": _is_gain(confirmed) and not candidate.variant.uneven_share,
        }  # fmt: skip
        found.append((candidate, row))
    return sorted(found, key=lambda one: (-one[1]["is_gain"], -(one[1]["further_launches"] or [0.0])[0]))


def _launch_ratio(measured: MeasuredSuite, study: Study, usual: Sequence[Study]) -> float | None:
    """Throughput ratio of one launch, geometric mean over rounds; variables compare with that launch's plain gang."""
    if len(study.arms) > 1:
        usual_pace, pace = measured.paces(study, *study.arms[:2])
        return float(np.exp(np.log(pace / usual_pace).mean())) if len(pace) else None
    beside = next((one for one in usual if one.launch == study.launch), None)
    both = [measured.paces(one, one.arms[0])[0] for one in (study, beside) if one is not None]
    logs = [np.log(values).mean() for values in both if len(values)]
    return float(np.exp(logs[0] - logs[1])) if len(logs) == 2 else None


def _says(screened: Found | None, confirmed: Found | None, why_missing: str) -> str:
    if why_missing:
        return "not measured"
    if _is_gain(confirmed):
        return "faster"
    found = confirmed or screened
    if found is None or found.interval is None:
        return "too few rounds"
    if found.interval[1] < 1:
        return "slower"
    is_small = confirmed is not None and found.interval[0] > 1
    return f"faster by less than {100 * WORTH:g} %" if is_small else "no difference shown"


def _gain(found: Found) -> str:
    more = Found(found.value - 1, found.interval and (found.interval[0] - 1, found.interval[1] - 1))
    return f"{cell(more, _SHARE)}, {ends(more, _SHARE)}"


def _advice(chosen: Sequence[tuple[Candidate, Row]], plan: Plan) -> Iterator[str]:
    yield "Use settings that change training only if training may change."
    usual, ranks = plan.studies[0].workload.batch_size, plan.layout.world_size
    for one, row in chosen:
        if one.changes_training == _CHANGES_BATCH:
            factor = one.arm(ranks, usual).batch_size / usual
            batch, root = round(ranks * usual * factor), math.sqrt(factor)
            yield _RULES.format(name=row["setting"], batch=batch, usual=ranks * usual, factor=factor, root=root)
    yield f"With world size k, the global batch is k times that of one {plan.device}, and the same rules hold."


class TuneJudge:
    """A `pytest_ddpscale.launch.supervisor.Judge`; `confidence` is that of each interval, 0 … 1."""

    def __init__(self, plan: Plan, confidence: float) -> None:
        self._plan, self._confidence = plan, confidence
        self._columns = GrowingColumns()

    def hear(self, record: AnyRecord) -> None:
        """Store a record."""
        self._columns.hear(record)

    def needed_arms(self, study_id: str) -> Sequence[str]:
        """All arms, until the interval shows a difference, or that there is none worth a change."""
        study = self._plan.study(study_id)
        if study is None:
            return []
        if len(study.arms) < 2 or study.launch > 1:  # of a fixed length
            return [arm.name for arm in study.arms]
        usual, other = study.arms
        evidence = Evidence(self._plan, self._columns.columns({(study.id, arm.name) for arm in study.arms}), {})
        found = Measured(evidence, self._confidence).throughput(study, other, usual)
        if found is None or found.interval is None:
            return [usual.name, other.name]
        low, high = found.interval
        is_told = low > 1 or high < 1 or (low >= 1 - WORTH and high <= 1 + WORTH)
        return [] if is_told else [usual.name, other.name]
