"""`ddpscale tune`: which settings make a workload train faster on these nodes, and by how much.

Each setting is an arm of its own, in interleaved rounds with the usual settings in one gang. An apparent gain is
measured again in further launches of new processes, together with gangs that set environment variables: launches differ
by more than their rounds show, so a gain is the mean over those launches, with its interval.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import MemoryFormat
from pytest_ddpscale.judge.stats import Estimate
from pytest_ddpscale.plan.arm import USUAL, Arm, CommunicationHook, CompileMode, Variant
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.plan.workload import MOST_LOADER_WORKERS, MOST_PREFETCH, Workload
from pytest_ddpscale.settings import on_or_off, one_of, read_value, whole
from pytest_ddpscale.suites.engine import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes, geometric_mean_estimate
from pytest_ddpscale.suites.options import PRECISIONS, above_zero, add_workloads, folder_data, number, workloads_of
from pytest_ddpscale.suites.results import Column, Drawn, Results, Row, Rows, cell_with_ends
from pytest_ddpscale.util.command_parser import adder
from pytest_ddpscale.util.document import Listing, Section
from pytest_ddpscale.util.nearest import did_you_mean

Environment: TypeAlias = tuple[tuple[str, str], ...]
Setting: TypeAlias = tuple[Variant, Environment]
# The first finds apparent gains, the others confirm them.
LAUNCHES = 5
# Of the first launch on GPUs, to see small gains. CPUs keep the default pace, because their rounds are long.
ROUNDS_ON_GPUS = 16
# A smaller difference is not worth a change, so further rounds are not needed.
WORTH = 0.01
OF_A_WORD = {f"NCCL_{name}" for name in ("ALGO", "BUFFSIZE", "DEBUG", "HOSTID", "NET", "NTHREADS", "PROTO")}
BATCH, FASTER = "batch_size", "faster"
# How the value of a setting is read, by the fields of `Variant`.
_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "bucket_cap_mb": above_zero, "gradient_as_bucket_view": on_or_off, "static_graph": on_or_off,
    "broadcast_buffers": on_or_off, "high_priority_stream": on_or_off, "fused_optimizer": on_or_off,
    "precision": one_of(*PRECISIONS), "memory_format": one_of(*get_args(MemoryFormat)),
    "compile": one_of(*get_args(CompileMode)), "hook": one_of(*get_args(CommunicationHook)),
    "accumulation_steps": number, BATCH: number, "uneven_share": above_zero,
    "workers": whole(MOST_LOADER_WORKERS, 0), "prefetch": whole(MOST_PREFETCH), "pin_memory": on_or_off,
}  # fmt: skip
# Tried without --try: several values for each name.
USUAL_SETTINGS: dict[DeviceType, str] = {
    "cuda": "bucket_cap_mb=5,50,100 gradient_as_bucket_view=true static_graph=true broadcast_buffers=false "
    "high_priority_stream=true precision=fp32,fp16,bf16 memory_format=channels_last,contiguous fused_optimizer=true "
    "compile=default,reduce-overhead accumulation_steps=2,4 batch_size=half,double hook=fp16,bf16,powersgd "
    "NCCL_ALGO=Ring,Tree NCCL_BUFFSIZE=8388608 NCCL_MIN_NCHANNELS=16 TORCH_DIST_USE_NCCL2=0,1",
    "cpu": "bucket_cap_mb=5 gradient_as_bucket_view=true static_graph=true broadcast_buffers=false precision=bf16 "
    "memory_format=channels_last fused_optimizer=true accumulation_steps=4 batch_size=double",
}
# Further ones without a folder and with one.
USUAL_OF_DATA = (" uneven_share=0.1", " workers=1,2,8 prefetch=4 pin_memory=false")
# What to write for a setting, by its name or all of it; else it is an option of DistributedDataParallel.
_PASTE = {
    "high_priority_stream": "options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)\n"
    'dist.init_process_group("nccl", pg_options=options)',
    "precision=bf16": "with torch.autocast(device.type, torch.bfloat16):  # forward pass and loss",
    "precision=fp16": "scaler = torch.amp.GradScaler()\nwith torch.autocast(device.type, torch.float16): …\n"
    "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    "precision=fp32": "# no torch.autocast",
    "memory_format=channels_last": "model.to(memory_format=torch.channels_last)  # and images",
    "memory_format=contiguous": "model.to(memory_format=torch.contiguous_format)  # and images",
    "compile": 'torch.compile(DistributedDataParallel(model), mode="{value}")',
    "compile=no": "# no torch.compile",
    "fused_optimizer": "torch.optim.SGD(model.parameters(), …, fused=True)",
    "hook": "ddp.register_comm_hook(None, default_hooks.{value}_compress_hook)",
    "hook=powersgd": "ddp.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)",
    "accumulation_steps": "for step, batch in enumerate(loader, 1):\n"
    "    with ddp.no_sync() if step % {value} else nullcontext():\n"
    "        (loss_of(ddp, batch) / {value}).backward()\n"
    "    if step % {value} == 0:\n        optimizer.step(); optimizer.zero_grad()",
    BATCH: "DataLoader(…, batch_size={value})",
    "workers": "DataLoader(…, num_workers={value})",
    "prefetch": "DataLoader(…, prefetch_factor={value})",
    "pin_memory": "DataLoader(…, pin_memory={value})",
    "uneven_share": "# DistributedSampler(dataset, drop_last=True) gives all ranks as much",
}
_RATIO = "{:.3f}×"
_HOW = (
    f"Throughput with each setting over that without it. A gain counts if it is at least {100 * WORTH:g} %, and if "
    "further launches confirm it. Gains do not add up: measure again."
)
_NOTES = {
    "hook": "changes training: gradients are sent with fewer bits", "precision": "changes the precision",
    "uneven_share": "not a setting: shows the cost of uneven batches",
}  # fmt: skip
_COLUMNS = [
    Column("setting", "Setting"), Column("ratio", "Throughput", _RATIO), Column("says", "Says"), Column("note", "Note"),
]  # fmt: skip
_DRAWN = Drawn("Throughput with a setting over that without it", "setting", ("ratio",), base=1)


class Tune(Suite):
    """Search for faster settings."""

    name = "tune"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for the workload and the settings to try."""
        add = adder(parser)
        add_workloads(parser, 1, "the first")
        add("--batch", "N", number, "samples per GPU; default: the workload's")
        add("--folder", "PATH", Path, "train on its images, with settings of their loader; default: synthetic")
        parser.add_argument("--try", dest="tried", metavar='"NAME=V1,V2 …"',
            help=f"settings; a name in capitals is an environment variable. Default on GPUs: {USUAL_SETTINGS['cuda']}. "
                 f"CPU: {USUAL_SETTINGS['cpu']}. Also{USUAL_OF_DATA[0]}; with a folder instead{USUAL_OF_DATA[1]}"
        )  # fmt: skip

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan the first launch: a study of two arms for each setting."""
        rounds = nodes.settings.rounds or (nodes.pace.rounds if nodes.is_cpu else ROUNDS_ON_GPUS)
        studies = (study for study in _studies(arguments, nodes, rounds) if len(study.arms) > 1)
        return nodes.plan(studies, launches=LAUNCHES)

    def further(self, arguments: argparse.Namespace, nodes: SuiteNodes, measured: MeasuredSuite) -> Plan | None:
        """Plan further launches for apparent gains and environment variables."""
        again = [replace(study, rounds=FEWEST_ROUNDS) for study in promising(measured)]
        alone = [study for study in _studies(arguments, nodes, FEWEST_ROUNDS) if len(study.arms) < 2]
        again += alone if len(alone) > 1 else []
        # Reverse the order in every other launch, so that no gang always follows the same one.
        studies = [replace(one, launch=n) for n in range(2, LAUNCHES + 1) for one in (again if n % 2 else again[::-1])]
        return nodes.plan(studies, launches=LAUNCHES) if studies else None

    def results(self, measured: MeasuredSuite) -> Results:
        """A row for each setting, the largest confirmed gain first."""
        rows = tried_settings(measured)
        gains = [
            f"{row['setting']} {cell_with_ends(row['ratio'], _RATIO)}"
            for row in rows if row["is_recommended"]
        ]  # fmt: skip
        finding = f"none of {len(rows)} settings is shown to be faster"
        if gains:
            finding = f"{len(gains)} of {len(rows)} settings are faster: {', '.join(gains)}"
        table = Rows("tune", "Settings", _COLUMNS, rows, notes=[_HOW], drawn=_DRAWN)
        code = Listing("\n\n".join(f"# {row['setting']}\n{row['paste']}" for row in rows))
        return Results("Tuning", [finding], [table], measured.problems(), more=[Section("To paste", [code])])


def settings_of(text: str, workload: Workload) -> list[Setting]:
    """Parse ``name=value,value name=value``; each setting once, without those that the workload has.

    Raises:
        ValueError: a word is not a setting; the message names it and what is expected.
    """
    batch, settings = workload.batch_size, list[Setting]()
    own = vars(USUAL) | {
        "precision": workload.precision, "memory_format": workload.family.memory_format, BATCH: batch,
        "compile": "default" if workload.compile else "no",
    }  # fmt: skip
    own |= {} if workload.data == "synthetic" else vars(workload.data)
    relative = {"half": max(1, batch // 2), "double": 2 * batch}
    for word in text.split():
        name, _, values = word.partition("=")
        nccl = nccl_variables() if name.upper().startswith("NCCL_") else frozenset[str]()
        is_variable = name in nccl or (not nccl and re.fullmatch("[A-Z_][A-Z0-9_]*", name))
        if not values:
            raise ValueError(f"name=value, not {word!r}")
        if not is_variable and name not in _PARSERS:
            near = did_you_mean(name, _PARSERS) or did_you_mean(name.upper(), sorted(nccl))
            raise ValueError(
                f"variables that NCCL reads, or settings such as {', '.join(_PARSERS)}, not {name!r}{near}"
            )
        for value in values.split(","):
            if is_variable:
                settings.append((USUAL, ((name, value),)))
                continue
            try:
                read: Any = relative[value] if name == BATCH and value in relative else _PARSERS[name](value)
            except ValueError as error:
                raise ValueError(f"{name} as {error}, not {value!r}") from None
            if read != own[name]:
                settings.append((Variant(**{name: read}), ()))
    return [*dict.fromkeys(settings)]


@cache
def nccl_variables() -> frozenset[str]:
    """Names in the NCCL that torch brings, which ignores unknown variables in silence; none if it brings no NCCL."""
    torch = find_spec("torch")
    folder = Path(torch.origin).parents[1] if torch and torch.origin else Path()
    libraries = (library.read_bytes() for library in folder.glob("nvidia/nccl/lib/libnccl.so*"))
    names = {name.decode() for library in libraries for name in re.findall(rb"\0(NCCL_[A-Z0-9_]+)(?=\0)", library)}
    # Of a word, such as NCCL_P2P, most are other names.
    return frozenset(name for name in names if name.count("_") > 1 or name in OF_A_WORD)


def _studies(arguments: argparse.Namespace, nodes: SuiteNodes, rounds: int) -> list[Study]:
    """The usual settings, and a study of each setting to try: beside the usual ones, or of a variable in a gang of its
    own. Raises OptionError.
    """
    sku, device_type, batch = nodes.subject.sku, nodes.subject.device_type, arguments.batch
    if arguments.model and not batch:
        raise OptionError("--batch", "--model needs it", "samples per GPU")
    [workload, *_] = workloads_of(arguments, nodes.subject.thresholds.thresholds.skus[sku], device_type)
    workload = replace(workload, batch_size=batch or workload.batch_size, data="synthetic")
    if arguments.folder:
        if not workload.family.reads_folders:
            raise OptionError("--folder", f"found {arguments.folder} for {workload.name}", "a workload of images")
        data, num_classes = folder_data(arguments, nodes)
        workload = replace(workload, data=data, family=workload.family.changed(num_classes=num_classes))

    def study(variant: Variant, environment: Environment) -> Study:
        of_pass = variant.batch_size or workload.batch_size
        usual = Arm("ddp", nodes.world_size, workload.batch_size)
        arms = dict.fromkeys((usual, replace(usual, batch_size=of_pass * variant.accumulation_steps, variant=variant)))
        planned = nodes.study(workload, arms, rounds, environment=environment)
        return replace(planned, workload=replace(workload, name=f"{workload.name}+{setting_of(planned) or 'usual'}"))

    usual = USUAL_SETTINGS[device_type] + USUAL_OF_DATA[bool(arguments.folder)]
    settings = usual if arguments.tried is None else arguments.tried
    studies = read_value("--try", settings, lambda text: [study(*setting) for setting in settings_of(text, workload)])
    if not studies:
        raise OptionError("--try", f"found {settings!r}", "a setting that the workload does not have already")
    return [study(USUAL, ()), *studies]


def setting_of(study: Study) -> str:
    """What a study tries: ``bucket_cap_mb=5``, ``NCCL_ALGO=Ring``; empty for the usual settings."""
    return study.arms[-1].variant.name or "".join(map("=".join, study.environment))


def promising(measured: MeasuredSuite) -> list[Study]:
    """Studies of the first launch with a gain worth a change, to be measured again."""
    studies = [study for study in measured.plan.studies if study.launch == 1]
    return [study for study in studies if _says(measured.throughput(study, *study.arms[::-1]), True) == FASTER]


def tried_settings(measured: MeasuredSuite) -> list[Row]:
    """A row for each setting of the plan, the largest confirmed gain first.

    The intervals of all confirmed settings hold together with the requested confidence (Bonferroni). Other launches
    than these decided which settings to confirm.
    """
    of_setting, rows = defaultdict[str, list[Study]](list), list[dict[str, Any]]()
    for study in measured.plan.studies:
        of_setting[setting_of(study)].append(study)
    usual = {study.launch: study for study in of_setting.pop("", ())}
    again = sum(studies[-1].launch > 1 for studies in of_setting.values())
    for setting, studies in of_setting.items():
        first, further = studies[0], None
        screened = measured.throughput(first, *first.arms[::-1]) if first.launch == 1 else None
        ratios = [_launch_ratio(measured, study, usual) for study in studies if study.launch > 1]
        known = [ratio for ratio in ratios if ratio is not None]
        if len(known) > 2:
            further = geometric_mean_estimate(known, 1 - (1 - measured.confidence) / again)
        says = _says(further or screened, further is not None)
        if any(measured.why_missing(study.id) for study in studies):
            says = "not measured"
        rows.append({
            "setting": setting, "ratio": further or screened, "first_launch": screened, "further_launches": further,
            "says": says, "note": _note(first, measured.plan.device_type), "paste": _paste(first),
            "is_recommended": says == FASTER and not first.arms[-1].variant.uneven_share,
        })  # fmt: skip
    return sorted(rows, key=lambda row: (row["says"] != FASTER, -(row["further_launches"] or [0.0])[0]))


def _launch_ratio(measured: MeasuredSuite, study: Study, usual: Mapping[int, Study]) -> float | None:
    """Throughput ratio of one launch, geometric mean over rounds; variables compare with that launch's plain gang."""
    paces = [*measured.paces(study, *study.arms)]
    if study.environment:
        paces = [measured.paces(one, one.arms[0])[0] for one in (usual[study.launch], study)]
    logs = [np.log(pace).mean() for pace in paces if len(pace)]
    return float(np.exp(logs[1] - logs[0])) if len(logs) == 2 else None


def _says(gain: Estimate | None, is_confirmed: bool) -> str:
    if gain is None or gain.interval is None:
        return "too few rounds"
    low, high = gain.interval
    if low > 1 and is_confirmed:
        return FASTER if gain.value >= 1 + WORTH else f"{FASTER} by less than {100 * WORTH:g} %"
    return "slower" if high < 1 else "no difference shown"


def _note(study: Study, device_type: DeviceType) -> str:
    """What a setting changes besides speed, or how to set it; empty for an option of DistributedDataParallel."""
    setting, factor = setting_of(study), study.arms[-1].batch_size / study.workload.batch_size
    if factor != 1:
        return f"changes the global batch: learning rate × {factor:.3g} (SGD) or × {math.sqrt(factor):.3g} (Adam)"
    if device_type == "cpu" and setting.startswith("NCCL_"):
        return "without effect: gloo reads no NCCL variable"
    return _NOTES.get(setting.partition("=")[0], "")


def _paste(study: Study) -> str:
    """What to write for a setting in a script, or before it."""
    setting = setting_of(study)
    name, _, value = setting.partition("=")
    if study.environment:
        return f"export {shlex.quote(setting)}"
    line = _PASTE.get(setting) or _PASTE.get(name, "DistributedDataParallel(model, {name}={value})")
    return line.format(name=name, value=value)
