"""Options, environment and ini file, made into one typed value.

For each setting the command line wins over the environment, and that over the ini file.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpscale.errors import OptionError

AUTO = "auto"
LAUNCHERS = (AUTO, "torchrun", "slurm")
# What becomes of nodes that a check finds unfit before anything is launched on them.
MEASURE, LEAVE_OUT, STOP = UNFIT = ("measure", "leave-out", "stop")
DURATION = re.compile(r"^([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h)?\Z")
# More than anybody means; what is larger would only overflow later.
MOST_NODES = 100_000
MOST_PER_NODE = 4_096
MOST_ROUNDS = 10_000
LONGEST_S = 30 * 86_400.0
LONGEST_BLOCK_S = 600.0
SHORTEST_BLOCK_S = 0.01
# What says how to measure, and so contradicts --ddp-judge, which measures nothing.
_MEASURING = (
    "ddp_launcher", "ddp_nodes", "ddp_gpus_per_node", "ddp_slurm_args", "ddp_queue_limit", "ddp_container",
    "ddp_pass_env", "ddp_budget", "ddp_inactivity_limit", "ddp_total_limit", "ddp_unfit", "ddp_rounds", "ddp_block",
    "ddp_isolate",
)  # fmt: skip
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
# Arguments of srun that say how many tasks there are, what carries our line to them, and by what name they are found.
_OURS = re.compile(r"(--nodes|--ntasks(-per-\w+)?|--export|--input|--output|--error|--job-name)(=|$)|-[NnioeJ]")
_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}


@dataclass(frozen=True)
class Option:
    """One option, under its three names.

    Attributes:
        flag: on the command line; the ini key and ``DDPSCALE_…`` variable are derived from it.
        metavar: of its value; None for a switch.
        help: one line for ``--help``.
    """

    flag: str
    metavar: str | None
    help: str

    @property
    def name(self) -> str:
        """``gpu_sku``: the ini key and attribute."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """``DDPSCALE_GPU_SKU``: the environment variable."""
        return "DDPSCALE_" + self.name.removeprefix("ddp_").upper()


OPTIONS = (
    Option(
        "--gpu-sku", "SKU", "GPU model to judge by, a name or alias in the thresholds file; default: auto (from NVML)"
    ),
    Option(
        "--thresholds",
        "FILE",
        "thresholds file; default: thresholds.yaml here, else in rootdir, else the packaged copy",
    ),
    Option(
        "--ddp-run-dir", "DIR", "where everything measured and concluded goes; default: ddpscale-runs/<UTC time>-<sku>"
    ),
    Option("--ddp-judge", "RUN_DIR", "judge what an earlier run measured; measure nothing"),
    Option("--ddp-resume", "RUN_DIR", "go on with a run that was cut short: measure only what is missing"),
    Option(
        "--ddp-launcher",
        "auto|torchrun|slurm",
        "how ranks start; default: auto: slurm with several nodes or --ddp-slurm-args, else torchrun",
    ),
    Option("--ddp-nodes", "N", "nodes to use; default: all of the Slurm allocation, else 1"),
    Option("--ddp-gpus-per-node", "N", "GPUs (CPU: ranks) to use; default: all"),
    Option("--ddp-world-sizes", "1,2,4", "only requirements of these world sizes"),
    Option("--ddp-slurm-args", '"ARGS"', "further arguments of srun, such as --partition=gpu --exclusive"),
    Option("--ddp-queue-limit", "1h", "longest wait for Slurm to give nodes; default: 1h"),
    Option("--ddp-container", "IMAGE", "run ranks in a container: Pyxis/Enroot, or Apptainer/Singularity for .sif"),
    Option("--ddp-pass-env", "NAME,PREFIX*", "further environment variables that ranks get"),
    Option("--ddp-budget", "10m", "wall time for measuring; what is undecided then is inconclusive"),
    Option("--ddp-inactivity-limit", "10m", "end a gang of ranks that records nothing for so long; default: 10m"),
    Option("--ddp-total-limit", "2h", "end a gang of ranks that is not done by then; default: from the plan"),
    Option(
        "--ddp-unfit",
        "measure|leave-out|stop",
        "nodes that fail a check before anything is launched: measure them all the same (default), leave them out, "
        "or measure nothing",
    ),
    Option(
        "--ddp-history",
        "FILE",
        "SQLite file with what this site's nodes reached; default: history.sqlite beside runs in ddpscale-runs",
    ),
    Option("--ddp-confidence", "0.95", "confidence of the intervals; default: 0.95"),
    Option(
        "--ddp-rounds", "N", "most rounds of a study, at least 8; default: 32 (probes: 16); ends once all is decided"
    ),
    Option("--ddp-block", "3s", "length of a timed block; default: 2s on GPU, 0.75s on CPU"),
    Option("--ddp-isolate", None, "a fresh torchrun for each study instead of one warm gang"),
    Option("--ddp-allow-incomplete", None, "exit 0 although a selected requirement was not measured"),
)


@dataclass(frozen=True)
class Settings:
    """What the user asked for.

    Attributes:
        gpu_sku: name, alias or ``auto``.
        sku_was_given: whether the user named it, ``auto`` included.
        thresholds: the file named; None for the default.
        run_dir: the directory named; None for the default.
        judge: run directory to judge; None to measure.
        resume: run directory to finish; None for a new run.
        launcher: ``auto``, ``torchrun`` or ``slurm``.
        nodes: how many to use; None for all of the allocation.
        slurm_args: further arguments of srun.
        queue_limit_s: longest wait for Slurm to give nodes, in seconds.
        container: image that ranks run in; None for none.
        pass_env: names of further environment variables for ranks, a trailing ``*`` for any ending.
        gpus_per_node: GPUs (CPU: ranks) to use; None for all.
        world_sizes: the only world sizes wanted; None for all.
        budget_s: wall time for measuring, in seconds; None for no limit.
        inactivity_limit_s: a gang silent for this many seconds is ended.
        total_limit_s: a gang is ended after this many seconds, whatever it does; None for one that the plan gives.
        unfit: ``measure``, ``leave-out`` or ``stop``: what becomes of nodes that fail a check before the launch.
        history: the site's SQLite file; None for the default.
        confidence: of the intervals, 0.5 … 0.9999.
        rounds: of every study at most; None for the default.
        block_s: length of a timed block, in seconds; None for the default.
        isolate: a fresh launch for each study.
        allow_incomplete: whether unmeasured requirements leave the exit code at 0.
    """

    gpu_sku: str
    sku_was_given: bool
    thresholds: Path | None
    run_dir: Path | None
    judge: Path | None
    resume: Path | None
    launcher: str
    nodes: int | None
    slurm_args: tuple[str, ...]
    queue_limit_s: float
    container: str | None
    pass_env: tuple[str, ...]
    gpus_per_node: int | None
    world_sizes: tuple[int, ...] | None
    budget_s: float | None
    inactivity_limit_s: float
    total_limit_s: float | None
    unfit: str
    history: Path | None
    confidence: float
    rounds: int | None
    block_s: float | None
    isolate: bool
    allow_incomplete: bool


def settings_from(
    options: Mapping[str, Any], ini: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> Settings:
    """Read every setting and check it.

    Args:
        options: command-line values by option name; None or False where not given.
        ini: ini values by option name; empty where not given.
        environ: environment variables.

    Raises:
        OptionError: a value makes no sense; the message says where it came from.
    """
    values = {option.name: _find(option, options, ini, environ) for option in OPTIONS}
    sku = values["gpu_sku"]
    budget = values["ddp_budget"]
    settings = Settings(
        gpu_sku=sku.text or AUTO,
        sku_was_given=bool(sku.text),
        thresholds=_path(values["thresholds"]),
        run_dir=_path(values["ddp_run_dir"]),
        judge=_path(values["ddp_judge"]),
        resume=_resumed(values),
        launcher=_launcher(values["ddp_launcher"]),
        nodes=_count(values["ddp_nodes"], MOST_NODES),
        slurm_args=_arguments(values["ddp_slurm_args"]),
        queue_limit_s=_duration(values["ddp_queue_limit"]) if values["ddp_queue_limit"].text else 3600.0,
        container=values["ddp_container"].text or None,
        pass_env=_names(values["ddp_pass_env"]),
        gpus_per_node=_count(values["ddp_gpus_per_node"], MOST_PER_NODE),
        world_sizes=_counts(values["ddp_world_sizes"]),
        budget_s=_duration(budget) if budget.text else None,
        inactivity_limit_s=_duration(values["ddp_inactivity_limit"]) if values["ddp_inactivity_limit"].text else 600.0,
        total_limit_s=_duration(values["ddp_total_limit"]) if values["ddp_total_limit"].text else None,
        unfit=_unfit(values["ddp_unfit"]),
        history=_path(values["ddp_history"]),
        confidence=_confidence(values["ddp_confidence"]),
        rounds=_rounds(values["ddp_rounds"]),
        block_s=_block(values["ddp_block"]) if values["ddp_block"].text else None,
        isolate=_switch(values["ddp_isolate"]),
        allow_incomplete=_switch(values["ddp_allow_incomplete"]),
    )
    _refuse_measuring_beside_judging(values)
    _refuse_limits_that_cannot_be_kept(settings, values)
    return settings


@dataclass(frozen=True)
class _Value:
    """Text of a setting and where it was found."""

    text: str
    where: str

    def refuse(self, expected: str) -> OptionError:
        from pytest_ddpscale.util.masking import masked_arguments  # here, as every pytest session loads this module

        shown = repr(masked_arguments([self.text])[0])
        shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
        return OptionError(self.where, f"found {shown}", expected)


def _find(option: Option, options: Mapping[str, Any], ini: Mapping[str, str], environ: Mapping[str, str]) -> _Value:
    given = options.get(option.name)
    if given is True:
        return _Value("true", option.flag)
    if given not in (None, False):
        if not str(given):  # as --ddp-judge=$RUN gives, with RUN not set: it must not mean to measure
            raise OptionError(option.flag, "found no value", f"{option.flag}={option.metavar}")
        return _Value(str(given), option.flag)
    if environ.get(option.variable):
        return _Value(environ[option.variable], option.variable)
    return _Value(ini.get(option.name, ""), f"ini option {option.name}")


def _refuse_measuring_beside_judging(values: Mapping[str, _Value]) -> None:
    """On the command line only: a site's variables and ini file stand for runs of both kinds."""
    judge = values["ddp_judge"]
    given = [value for name in _MEASURING if (value := values[name]).where.startswith("--")]
    if judge.text and given:
        found = f"found {given[0].text!r} beside {judge.where}={judge.text}, which measures nothing"
        raise OptionError(given[0].where, found, f"one of {given[0].where} and {judge.where}")


def _refuse_limits_that_cannot_be_kept(settings: Settings, values: Mapping[str, _Value]) -> None:
    inactivity, total = values["ddp_inactivity_limit"], values["ddp_total_limit"]
    if inactivity.text and settings.total_limit_s is not None and settings.inactivity_limit_s > settings.total_limit_s:
        raise inactivity.refuse(f"no more than {total.where}={total.text}")
    limit_s = min(settings.inactivity_limit_s, settings.total_limit_s or settings.inactivity_limit_s)
    if settings.block_s is not None and settings.block_s > limit_s / 2:
        raise values["ddp_block"].refuse(f"at most half of the {limit_s:g} s after which silent ranks are ended")


def _path(value: _Value) -> Path | None:
    if "\0" in value.text:
        raise value.refuse("a path without a null character")
    try:
        return Path(value.text).expanduser() if value.text else None
    except RuntimeError:
        raise value.refuse("a path; there is no such user") from None


def _resumed(values: Mapping[str, _Value]) -> Path | None:
    """The run to go on with, which is measured, and in its own directory."""
    resume = values["ddp_resume"]
    other = next((values[name] for name in ("ddp_judge", "ddp_run_dir") if values[name].text), None)
    if resume.text and other is not None:
        found = f"found {resume.text!r} beside {other.where}={other.text}"
        raise OptionError(resume.where, found, f"one of {resume.where} and {other.where}")
    return _path(resume)


def _launcher(value: _Value) -> str:
    if value.text and value.text not in LAUNCHERS:
        raise value.refuse(f"one of {', '.join(LAUNCHERS)}")
    return value.text or AUTO


def _unfit(value: _Value) -> str:
    if value.text and value.text not in UNFIT:
        raise value.refuse(f"one of {', '.join(UNFIT)}")
    return value.text or MEASURE


def _arguments(value: _Value) -> tuple[str, ...]:
    try:
        arguments = tuple(shlex.split(value.text))
    except ValueError as error:
        raise value.refuse(f"arguments of srun, quoted as in a shell ({error})") from None
    if any(not argument.startswith("-") for argument in arguments[:1]):
        raise value.refuse("arguments of srun, such as --partition=gpu --exclusive")
    if any(_OURS.match(argument) for argument in arguments):
        raise value.refuse(
            "none of --nodes (that is --ddp-nodes), --ntasks, --export, --input, --output, --error and --job-name (by "
            "its own name what a gang leaves behind is found)"
        )
    return arguments


def _names(value: _Value) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.text.split(",") if name.strip())
    if not all(_VARIABLE.fullmatch(name) for name in names):
        raise value.refuse("names of environment variables such as MY_SITE,UCX_*")
    return names


def _count(value: _Value, most: int) -> int | None:
    if not value.text:
        return None
    if not _is_count(value.text, most):
        raise value.refuse(f"a whole number from 1 to {most}")
    return int(value.text)


def _is_count(text: str, most: int) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None and 1 <= int(text) <= most


def _rounds(value: _Value) -> int | None:
    rounds = _count(value, MOST_ROUNDS)
    if rounds is None:
        return None
    from pytest_ddpscale.plan.planner import FEWEST_ROUNDS  # here, as every pytest session loads this module

    if rounds < FEWEST_ROUNDS:
        raise value.refuse(f"at least {FEWEST_ROUNDS} rounds: fewer never decide")
    return rounds


def _counts(value: _Value) -> tuple[int, ...] | None:
    if not value.text:
        return None
    from pytest_ddpscale.plan.study import MOST_RANKS  # here, as every pytest session loads this module

    parts = [part.strip() for part in value.text.split(",")]
    if not all(_is_count(part, MOST_RANKS) for part in parts):
        raise value.refuse(f"world sizes such as 1,2,4, from 1 to {MOST_RANKS}")
    return tuple(sorted({int(part) for part in parts}))


def _duration(value: _Value) -> float:
    match = DURATION.match(value.text)
    if match is None or float(match[1]) <= 0:
        raise value.refuse("a time such as 90s, 10m or 1h")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > LONGEST_S:
        raise value.refuse(f"at most {LONGEST_S / 3600:g}h")
    return seconds


def _block(value: _Value) -> float:
    seconds = _duration(value)
    if not SHORTEST_BLOCK_S <= seconds <= LONGEST_BLOCK_S:
        raise value.refuse(f"a time from {SHORTEST_BLOCK_S:g}s to {LONGEST_BLOCK_S:g}s")
    return seconds


def _confidence(value: _Value) -> float:
    if not value.text:
        return 0.95
    try:
        confidence = float(value.text)
    except ValueError:
        raise value.refuse("a number such as 0.95") from None
    if not 0.5 <= confidence <= 0.9999:
        raise value.refuse("a number from 0.5 to 0.9999")
    return confidence


def _switch(value: _Value) -> bool:
    words = {
        "": False,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
    }
    if value.text.lower() not in words:
        raise value.refuse("true or false")
    return words[value.text.lower()]
