"""Checks of nodes in a line each: what is checked, on which machine, and what is wrong there, where and when.

    ecc pcie_under_load 2x8 ecc_uncorrected=3/n0.3 load pcie_width=8/n1:ddp@16:0-1

asks two checks of two nodes of eight A100: one GPU has memory errors before launch, and those of the other node have
fewer lanes in two rounds. Words, in any order but for what stands behind a stage:

    ecc, every                 checks, or all; `devices`, the notes on devices; a requirement, device_utilization:0.9@8
    2x8, cpu, ranks=7          nodes n0, n1 … with GPUs 0, 1 … of each; of which ranks use the first seven; or none
    sku.ecc=none               a key of the SKU's `node:`, or of its `detect:`
    fp16, apart                what the plan trains in instead of bf16; each node by itself
    warn, waived=1             the severity; days that a waiver still holds
    broke=probes, ended=…      a study without a result, or that was interrupted
    rounds=4, arms=each@8,…    under load
    launch, says               tells who is left out of the launch and where no rank could run; tells whole sentences
    load, nccl, after          ranks work, they connect, they have failed: what follows is so then, else before launch
    FIELD=VALUE                of GPUs or nodes in their survey, of windows under load, of a rank's connections
    FIELD.KEY=VALUE            of a mapping, such as versions.driver=580.1
    none, unread, unsupported  as values: the driver gives none; ~ is a space
    gone, idle                 nothing is told of it; it does not take part
    …/WHERE:ARM:ROUNDS         n1, n0-2, n1.0 (its GPU 0), .3 (GPU 3 of all nodes); ddp@16; 2, 0-1, 3-
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replaced
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from pytest_ddpscale.judge.checks import device_notes, unfit_nodes
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.study import PROBES, Plan, ProbeStudy, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence, with_telemetry_utilization
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import Reason
from pytest_ddpscale.run.records import RankTransport
from pytest_ddpscale.run.survey_record import GpuProcess, InfiniBandPort, RemappedRows, Survey
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, Culprit
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.thresholds.model import Sku
from pytest_ddpscale.thresholds.parts import Detect, Node
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.judged import CONFIDENCE, check_case, make_case, make_measurement
from tests.builders.rounds import columns_of
from tests.builders.telemetry import Telemetry, columns_of_telemetry
from tests.judge.told import codes


def beside(name: str) -> str:
    """A file of this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


TOPOLOGIES = dict(block.split("\n", 1) for block in beside("topologies.txt").split("=== ")[1:])
HEALTHY = json.loads(beside("healthy.json"))
NODE = convert(HEALTHY["survey"] | {"topology": TOPOLOGIES["dgx"]}, Survey)
WINDOW, CONNECTED = convert(HEALTHY["window"], Telemetry), convert(HEALTHY["transport"], RankTransport)
DETECT: dict[str, Any] = {"name": "^(NVIDIA )?A100-SXM4?-80GB$", "pci_device_ids": ["20b2"], "memory_gib": 80}
EXPECTED: dict[str, Any] = {"pcie_generation": 4, "pcie_width": 16, "nvlinks": 12, "ecc": True}
NOT_GIVEN = {"unread": "Unknown Error", "unsupported": "Not Supported"}
# Readings whose reason is that of NVML's call.
CALLS = {"nvlinks_active": "nvlinks"}
SHORT = {"within": "channels_within_node", "between": "channels_between_nodes"}
GIB, DAY = 2**30, date(2026, 10, 1)


def value_of(name: str, text: str, before: Any) -> Any:
    """A value as a line has it, of the kind that stands there in health."""
    words = [word for word in text.split(",") if word]
    if text == "none":
        return None
    if name == "variables":
        return text
    if name == "remapped_rows":
        return RemappedRows(2, pending=text == "pending", failed=text == "failed")
    if name == "processes":
        found = (re.fullmatch(r"(\d*)(.*)", name) for name in text.split(","))
        return tuple(GpuProcess(int(one[1] or 4711), one[2], 3 * GIB if one[0] else None) for one in found if one)
    if name == "infiniband":
        ports = [word.rpartition("|") for word in words]
        return tuple(InfiniBandPort(f"mlx5_{i}", 1, s, layer or "InfiniBand") for i, (layer, _, s) in enumerate(ports))
    if name == "topology":
        return TOPOLOGIES[text]
    if isinstance(before, dict):
        return dict.fromkeys(words, 1)
    if isinstance(before, tuple | list):
        return type(before)(words)
    if text.endswith("GiB"):
        return int(float(text[:-3]) * GIB)
    is_json = not isinstance(before, str) and re.fullmatch(r"true|false|-?[\d.]+(e\d+)?", text)
    return json.loads(text) if is_json else text


def is_in(span: str | None, number: int | None) -> bool:
    """Whether a number is in a span such as ``3``, ``1-2`` or ``4-``; all are where there is none."""
    if not span or number is None:
        return not span
    first, dash, last = span.partition("-")
    return int(first) <= number <= int(last or (10**6 if dash else first))


@dataclass(frozen=True)
class Change:
    """What is otherwise, where and when."""

    name: str
    value: str
    where: str
    arms: str
    rounds: str

    def is_at(self, node: int, gpu: int | None = None, arm: str = "", number: int = 0) -> bool:
        """Whether it is there and then."""
        places = [re.fullmatch(r"(?:n([\d-]+))?(?:\.([\d-]+))?", one) for one in self.where.split(",")]
        is_there = any(place and is_in(place[1], node) and is_in(place[2], gpu) for place in places)
        return is_there and (not self.arms or arm in self.arms.split(",")) and is_in(self.rounds, number)

    @property
    def is_of_node(self) -> bool:
        """Whether it is of a node as a whole, not of its GPUs."""
        return "." not in self.where and self.name.partition(".")[0] in (*NODE.__struct_fields__, "gone")

    def of(self, healthy: Any) -> Any:
        """What it makes of this."""
        name, _, key = self.name.partition(".")
        name, text = SHORT.get(name, name), self.value.replace("~", " ")
        before = getattr(healthy, name)
        if text in NOT_GIVEN:
            reasons = healthy.unreadable | {CALLS.get(name, name): NOT_GIVEN[text]}
            return replace(healthy, **{name: "" if isinstance(before, str) else None, "unreadable": reasons})
        if not key:
            return replace(healthy, **{name: value_of(name, text, before)})
        others = {one: value for one, value in before.items() if one != key}
        value = value_of(name, text, before.get(key))
        return replace(healthy, **{name: others if value is None else others | {key: value}})


def changed(healthy: Any, changes: Iterable[Change]) -> Any:
    """What changes make of it; None if it is gone."""
    for change in changes:
        if change.name in ("gone", "idle"):
            return None
        healthy = change.of(healthy)
    return healthy


class Checked:
    """A line: see the module."""

    def __init__(self, line: str) -> None:
        self.checks, self.flags, self.options = list[str](), set[str](), dict[str, str]()
        self.stages: list[tuple[str, list[Change]]] = [("before", [])]
        detect, expected = dict(DETECT), dict(EXPECTED)
        for word in line.split():
            key, _, value = word.partition("=")
            if size := re.fullmatch(r"(\d+)x(\d+)", word):
                self.nodes, self.gpus = map(int, size.groups())
            elif word in NODE_CHECKS or word == "devices" or re.fullmatch(r"[a-z_]+:[\d.@]+", word):
                self.checks.append(word)
            elif word == "every":
                self.checks += NODE_CHECKS
            elif word in ("load", "nccl", "after"):
                self.stages.append((word, []))
            elif word in ("cpu", "fp16", "apart", "warn", "launch", "says"):
                self.flags.add(word)
            elif key in ("ranks", "rounds", "arms", "waived", "broke", "ended"):
                self.options[key] = value
            elif key.startswith("sku."):
                keys = expected if key[4:] in Node.model_fields else detect
                keys[key[4:]] = value_of("", value.replace("~", " "), keys.get(key[4:]))
            else:
                where = r"([\w.]+?)(?:=(.*?))?(?:/((?:n\d|\.\d)[^:]*))?(?::([a-z][^:]*))?(?::(\d[\d-]*))?"
                found = re.fullmatch(where, word)
                assert found, f"{word}: expected FIELD=VALUE/WHERE:ARM:ROUNDS"
                self.stages[-1][1].append(Change(*(text or "" for text in found.groups())))
        device: DeviceType = "cpu" if "cpu" in self.flags else "cuda"
        self.ranks, self.has_gpus = int(self.options.get("ranks", self.gpus)), device == "cuda"
        asked = [re.split("[:@]", check) for check in self.checks if ":" in check]
        metric, bound, *world = asked[0] if asked else ("device_utilization", "0.9")
        self.training = make_case(metric, float(bound), int(*world or [self.nodes * self.ranks]))
        self.study = Study("weak", self.training.workload, tuple(self.training.question.arms), 8, 1.0, 1.0)
        probes = ProbeStudy((Arm("matmul-fp16" if "fp16" in self.flags else "matmul-bf16"),), 16, 0.5)
        studies = () if "apart" in self.flags else (self.study,)
        self.plan = Plan("a100", device, studies, 0, self.nodes, self.ranks, probes=probes)
        self.sku = Sku("any", Detect(**detect) if self.has_gpus else Detect(device="cpu"), node=Node(**expected))

    def case(self, check: str, sku: Sku) -> AnyCase:
        """A check, or the requirement."""
        if ":" in check:
            return self.training
        case = check_case(check, "warn" if "warn" in self.flags else "fail", sku)
        if "waived" not in self.options:
            return case
        waiver = Waiver("A. Name", "a part is ordered", DAY + timedelta(int(self.options["waived"])))
        return replaced(case, requirement=replaced(case.requirement, waiver=waiver))

    def evidence(self) -> Evidence:
        """What a run has when it is judged."""
        healthy = {number: self._healthy(f"n{number}") for number in range(self.nodes)}
        (_, first), *later = self.stages
        before, stages = self._surveys(first, healthy), dict(later)
        alive = healthy | {number: one for number, one in before.items() if not one.problem}
        after = [self._surveys(changes, alive) for stage, changes in later if stage == "after"]
        told, measured = self._under_load(stages["load"]) if "load" in stages else ([], [])
        broke, ended = ({self.options[how]: "it broke"} if how in self.options else {} for how in ("broke", "ended"))
        telemetry = columns_of_telemetry(told)
        return Evidence(
            self.plan, with_telemetry_utilization(columns_of(measured), telemetry), broke, interrupted=ended,
            hosts=[one.host for one in healthy.values()] if later else (),
            surveys={one.host: one for one in before.values()}, telemetry=telemetry,
            transports=self._connections(stages["nccl"]) if "nccl" in stages else {},
            post_mortems=[replace(one, unix_s=1.8e9) for surveys in after for one in surveys.values()],
        )  # fmt: skip

    def _healthy(self, host: str) -> Survey:
        if not self.has_gpus:
            without = {"driver": None, "cuda_driver": None, "cuda": None, "nccl": None}
            return replace(NODE, host=host, has_driver=False, gpus=(), versions=NODE.versions | without)
        gpus = (
            replace(NODE.gpus[0], index=i, uuid=f"GPU-{host}-{i}", pci_bus_id=f"0:{i:02}", local_rank=i)
            for i in range(self.gpus)
        )
        return replace(NODE, host=host, gpus=tuple(gpus))

    def _surveys(self, changes: list[Change], healthy: dict[int, Survey]) -> dict[int, Survey]:
        """By number of the node."""
        found = dict[int, Survey]()
        for node, survey in healthy.items():
            gpus = [
                changed(gpu, [change for change in changes if not change.is_of_node and change.is_at(node, number)])
                for number, gpu in enumerate(survey.gpus)
            ]
            left = changed(survey, [change for change in changes if change.is_of_node and change.is_at(node)])
            if left is not None:
                whole = replace(left, gpus=tuple(gpu for gpu in gpus if gpu is not None))
                found[node] = Survey(left.host, left.unix_s, left.problem) if left.problem else whole
        return found

    def _places(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Node and GPU of each rank."""
        for rank in range(self.nodes * self.ranks):
            node, gpu = divmod(rank, self.ranks)
            device = f"GPU-n{node}-{gpu}" if self.has_gpus else "cpu"
            yield node, gpu, {"rank": rank, "host": f"n{node}", "local_rank": gpu, "device": device}

    def _under_load(self, changes: list[Change]) -> tuple[list[Telemetry], list[Any]]:
        """Windows of all GPUs, and what was measured in them."""
        told, measured = list[Telemetry](), []
        names = self.options.get("arms", self.study.arms[0].name).split(",")
        for number, name in itertools.product(range(int(self.options.get("rounds", 4))), names):
            study = self.study.id if "@" in name and not name.startswith("all") else PROBES
            for node, gpu, place in self._places():
                own, start = [change for change in changes if change.is_at(node, gpu, name, number)], 1.7e9 + number
                healthy = replace(
                    WINDOW, study=study, arm=name, round=number, started_unix_s=start, ended_unix_s=start + 1, **place
                )
                window = changed(healthy, own)
                told += [window] if window else []
                busy = (window or healthy).utilization
                if all(one.name != "idle" for one in own):
                    block = make_measurement(study, self.study.arms[0], number, utilization=busy, **place)
                    measured.append(replaced(block, arm=name))
        return told, measured

    def _connections(self, changes: list[Change]) -> dict[Place, RankTransport]:
        found = dict[Place, RankTransport]()
        for node, gpu, place in self._places():
            between = CONNECTED.channels_between_nodes if self.nodes > 1 else {}
            healthy = replace(CONNECTED, rank=place["rank"], channels_between_nodes=between)
            one = changed(healthy, [change for change in changes if change.is_at(node, gpu)])
            if one is not None:
                every = one.channels | one.channels_within_node | one.channels_between_nodes
                found[Place(place["host"], gpu, place["device"], gpu)] = replace(one, channels=every)
        return found

    def told(self, check: str, evidence: Evidence) -> Iterator[str]:
        """What a check comes to."""
        if check == "devices":
            yield from (f"~ {self.short(one)}" for one in device_notes(evidence))
            return
        # What another SKU expects of the same nodes is its own.
        judge(self.case(check, replaced(self.sku, node=None)), evidence, CONFIDENCE)
        verdict = judge(self.case(check, self.sku), evidence, CONFIDENCE)
        value, why = "" if verdict.value is None else f" {verdict.value:.3g}", [("-", verdict.because)]
        if "says" in self.flags:
            value += f" ({' … '.join(f'{end:.3g}' for end in verdict.interval or ())}) in {verdict.rounds}"
        elif verdict.outcome in ("passed", "failed"):
            why = []
        yield f"{verdict.outcome}{value}{' partly' * (PARTLY_KNOWN in verdict.flags)}"
        yield from (f"! {self._culprit(culprit)}" for culprit in verdict.culprits)
        for mark, reason in (*why, *(("~", note) for note in verdict.remarks)):
            yield from (f"{mark} {told}" for told in self._each(reason))

    def _each(self, reason: Any) -> list[str]:
        """What is told of each that is missing, or of the reason."""
        if "says" in self.flags:
            return re.split(r"; (?=n\d+: |and \d+ more|\d+ of \d+ nodes? reported)", say(reason))
        missing = reason.args[0] if reason.code == "also" else reason
        if missing.code != "missing-data":
            return [self.short(reason)]
        told, others, why = missing.args
        more = [f"{others} more"] * (others > 0)
        return [*map(self.short, told), *more, *filter(None, [why])]

    def _culprit(self, culprit: Culprit) -> str:
        where, gpu = f"{culprit.kind} {culprit.host}", culprit.place.index
        if culprit.kind == "gpu":
            usual = {"uuid": f"GPU-{culprit.host}-{gpu}", "rank": gpu, "pci": f"0:{gpu:02}"}
            found = {
                "uuid": culprit.place.uuid or None,
                "rank": culprit.place.local_rank,
                "pci": culprit.place.pci or usual["pci"],
            }
            where += f".{gpu}" + "".join(f" {key}={found[key]}" for key in usual if found[key] != usual[key])
        shown = f" ({say(culprit.shown)})" if culprit.shown else ""
        return f"{where}{'' if culprit.is_certain else ' perhaps'}: {self.short(culprit.because)}{shown}"

    def short(self, reason: Reason) -> str:
        """The sentence or the codes of a reason, these behind the GPU or node."""
        if "says" in self.flags:
            return say(reason)
        if reason.code != "at":
            return codes(reason, every=True)
        host, gpu, why = reason.args
        return f"{host}{'.' * bool(gpu)}{''.join(gpu.split()[1:2])}: {codes(why, every=True)}"

    def left_out(self) -> Iterator[str]:
        """Who is left out of the launch, and for what."""
        cases = [self.training, *(self.case(check, self.sku) for check in self.checks)]
        for why, is_hopeless in (("left out", False), ("hopeless", True)):
            texts = unfit_nodes(cases, self.plan, self.evidence().surveys, DAY, hopeless=is_hopeless)
            for host, reason in texts.items():
                names = dict.fromkeys(one.args[0] if one.code == "of-check" else one.code for one in reason.args)
                yield f"{why} {host}: {say(reason) if 'says' in self.flags else ' '.join(names)}"


def tell(line: str) -> Iterator[str]:
    """What is told of a line; of several checks together if it is the same."""
    checked, said = Checked(line), dict[tuple[str, ...], list[str]]()
    if "launch" in checked.flags:
        yield from checked.left_out()
        return
    evidence = checked.evidence()
    for check in checked.checks:
        said.setdefault(tuple(checked.told(check, evidence)), []).append(check)
    most = max(map(len, said.values()), default=0)
    for lines, checks in sorted(said.items(), key=lambda one: len(one[1]) == most):
        yield from [f"{' '.join(checks) if len(checks) < most or most < 4 else 'others'}:"] * (len(checked.checks) > 1)
        yield from lines
