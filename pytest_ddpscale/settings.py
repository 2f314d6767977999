"""Options and ini file, combined into one typed value.

Each option is declared once, as a field of `Settings`: its flag, its parser, its default and its help. Everything else
derives from that: pytest's options, ini keys, messages and the page of options. The command line overrides the ini
file. A few options are environment variables too, which override the ini file: those that the scripts in slurm/ take.

Every pytest session imports this module, so a parser imports what it needs only when its option is given.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.removed import REMOVED

AUTO = "auto"
LAUNCHERS = {"torchrun": "launcher", "exec": "launcher", "ssh": "launcher", "slurm": "slurm"}  # name: module in launch/
# What to do with nodes that a check finds unfit before anything is launched on them.
MEASURE, LEAVE_OUT = "measure", "leave-out"
UNFIT = (MEASURE, LEAVE_OUT, "stop")
# Beyond any real use; larger values would only overflow later.
MOST_NODES = 100_000
MOST_PER_NODE = 4_096
MOST_ROUNDS = 10_000
LONGEST_S = 30 * 86_400.0
LONGEST_BLOCK_S = 600.0
SHORTEST_BLOCK_S = 0.01
# Arguments of srun that this package sets itself: task counts, the streams that carry the protocol, and the job name.
_OURS = r"--(nodes|ntasks(-per-\w+)?|export|input|output|error|job-name)(=|$)|-[NnioeJ]"
_NOTE = r"([A-Za-z][A-Za-z0-9_-]{0,39})=\s*(\S.*?)\s*"
_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}

T = TypeVar("T")
# What an option is about. "one run": this run or its selection of requirements; commands that remeasure a requirement
# omit these options. "measuring": contradicts --ddp-judge. "judging": how to judge what was measured.
About = Literal["one run", "measuring", "judging"]


class Option(NamedTuple):
    """One option, on the command line and in the ini file.

    Attributes:
        flag: on the command line; the ini key is derived from it.
        metavar: placeholder of its value; None for a switch.
        parse: reads a value; raises ValueError with what it expected.
        explanation: one line, without the default.
        default: as typed by a user; None for none.
        alone: the value of the bare flag; empty if the flag needs a value.
        repeats: whether it may be given several times; its parser reads one value a line, as in the ini file.
        in_environment: whether `variable` is read too, because slurm/ has it among its scripts' site settings.
    """

    flag: str
    metavar: str | None
    parse: Callable[[str], Any]
    about: About
    explanation: str
    default: str | None = None
    alone: str = ""
    repeats: bool = False
    in_environment: bool = False

    @property
    def name(self) -> str:
        """``gpu_sku``: the ini key, and pytest's name for the option."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """``DDPSCALE_GPU_SKU``: the environment variable; refused unless `in_environment`."""
        return "DDPSCALE_" + self.name.removeprefix("ddp_").upper()

    @property
    def help(self) -> str:
        """One line for ``--help``."""
        return self.explanation + f"; default: {self.default}" * bool(self.default)


def read_value(where: str, text: str, parse: Callable[[str], T]) -> T:
    """Parse a value that the user typed.

    Raises:
        OptionError: `parse` refuses it; the message says where it was typed.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise _refused(where, text, str(error)) from None


def _refused(where: str, text: str, expected: str) -> OptionError:
    from pytest_ddpscale.util.masking import masked_arguments  # imported late: see the module's docstring

    return OptionError(where, f"found {repr(masked_arguments([text])[0])[:200]}", expected)


def path(text: str) -> Path:
    """A path, ``~`` expanded."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("a path of an existing user") from None


def hosts_or_file(text: str) -> str | Path:
    """A list of hosts, which launchers read; or the path of a host file, ``@FILE``."""
    return path(text[1:]) if text.startswith("@") else text


def one_of(*words: str) -> Callable[[str], str]:
    """Make a parser that accepts one of these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return parse


def within(
    read: Callable[[str], float], least: float, most: float, expected: str | None = None
) -> Callable[[str], Any]:
    """Make a parser of numbers from `least` to `most`; what `read` makes NaN is refused alike."""

    def parse(text: str) -> float:
        value = read(text)
        if not least <= value <= most:
            raise ValueError(expected or f"a whole number from {least} to {most}")
        return value

    return parse


def whole(most: int, least: int = 1) -> Callable[[str], int]:
    """Make a parser of a whole number from `least` to `most`."""
    return within(_count, least, most)


def _count(text: str) -> float:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else math.nan


def _number(text: str) -> float:
    try:
        return float(text.replace("_", "?"))
    except ValueError:
        return math.nan


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h)?", text)
    return float(match[1]) * _SECONDS[match[2]] if match else math.nan


# ``90s``, ``10m``, ``1h``; seconds without a unit.
duration_s = within(_seconds, 1e-9, LONGEST_S, f"a time such as 90s, 10m or 1h, at most {LONGEST_S / 3600:g}h")
block_length_s = within(
    _seconds, SHORTEST_BLOCK_S, LONGEST_BLOCK_S, f"a time from {SHORTEST_BLOCK_S:g}s to {LONGEST_BLOCK_S:g}s"
)
confidence_level = within(_number, 0.5, 0.9999, "a number from 0.5 to 0.9999")
_some_warm_up_s = within(_seconds, 60, LONGEST_BLOCK_S, f"0, or a time from 60s to {LONGEST_BLOCK_S:g}s")


def length_of_warm_up_s(text: str) -> float:
    """Seconds of training in one stretch; 0 for none."""
    return 0.0 if text == "0" else _some_warm_up_s(text)


def number_of_rounds(text: str) -> int:
    """Rounds of a study, at least as many as a decision needs."""
    from pytest_ddpscale.plan.planner import FEWEST_ROUNDS

    return whole(MOST_ROUNDS, FEWEST_ROUNDS)(text)


def number_of_profiled_steps(text: str) -> int:
    """Number of steps of each arm to profile."""
    from pytest_ddpscale.plan.study import MOST_PROFILED_STEPS

    return whole(MOST_PROFILED_STEPS)(text)


def some_world_sizes(text: str) -> tuple[int, ...]:
    """World sizes, each once, in ascending order."""
    from pytest_ddpscale.plan.study import MOST_RANKS

    sizes = within(_count, 1, MOST_RANKS, f"world sizes such as 1,2,4, from 1 to {MOST_RANKS}")
    return tuple(sorted({sizes(part.strip()) for part in text.split(",")}))


def share_between(least: float, most: float) -> Callable[[str], float]:
    """Make a parser of ``5%``, ``5 %`` or ``0.05``, which is 0.05."""

    def share(text: str) -> float:
        number = text.strip().removesuffix("%")
        return _number(number) / (100 if number != text.strip() else 1) + 0.0  # no -0

    return within(share, least, most, f"a share such as 5% or 0.05, from {100 * least:g}% to {100 * most:g}%")


def arguments_of_srun(text: str) -> tuple[str, ...]:
    """Split as a shell does; refuse arguments that this package sets itself."""
    arguments = words_of_command(text, "arguments of srun")
    if arguments and not arguments[0].startswith("-"):
        raise ValueError("arguments of srun, such as --partition=gpu --exclusive")
    if any(re.match(_OURS, argument) for argument in arguments):
        ours = "--nodes (see --ddp-nodes), --ntasks, --export, --input, --output"
        raise ValueError(f"none that the plugin sets: {ours}, --error, --job-name")
    return arguments


def words_of_command(text: str, expected: str = "a command") -> tuple[str, ...]:
    """Split as a shell does."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{expected}, quoted as in a shell ({error})") from None


def notes_of_run(text: str) -> tuple[tuple[str, str], ...]:
    """Notes of who measures what, where or why, one a line: ``ticket=OPS-7``."""
    lines = [line for line in text.splitlines() if line.strip()]
    notes = {match[1]: match[2] for line in lines if (match := re.fullmatch(_NOTE, line))}
    if len(notes) < len(lines):
        raise ValueError("KEY=VALUE such as ticket=OPS-7, KEY of letters, digits, _ and -, once")
    return tuple(notes.items())


def names_of_variables(text: str) -> tuple[str, ...]:
    """Names of environment variables; a trailing ``*`` matches any ending."""
    names = tuple(filter(None, map(str.strip, text.split(","))))
    if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", name) for name in names):
        raise ValueError("names of environment variables such as MY_SITE,UCX_*")
    return names


def on_or_off(text: str) -> bool:
    """A switch: true or false in any spelling that ini files use."""
    from configparser import ConfigParser

    if (is_on := ConfigParser.BOOLEAN_STATES.get(text.lower())) is None:
        raise ValueError("true or false")
    return is_on


_DECLARED: list[Option] = []


def _option(*attributes: Any, **more: Any) -> Any:
    """Declare a field of `Settings` as an option; a switch is off, else its value is None if not given and without
    default."""
    _DECLARED.append(option := Option(*attributes, **more))
    if option.default is not None:
        return option.parse(option.default)
    return () if option.repeats else False if option.metavar is None else None


# fmt: off
class Settings(NamedTuple):
    """The user's options, one field each, times in seconds; `sku_was_given` tells a typed ``auto`` from the default."""

    gpu_sku: str = _option("--gpu-sku", "SKU", str, "one run",
        "GPU model to judge by, as the thresholds file names it, or auto (from NVML)", default=AUTO)
    thresholds: Path | None = _option("--thresholds", "FILE", path, "one run",
        "thresholds file; default: thresholds.yaml here, in rootdir, else packaged; "
        "with --ddp-judge the file of the run's latest session", in_environment=True)
    run_dir: Path | None = _option("--ddp-run-dir", "DIR", path, "one run",
        "directory of the run; default: ddpscale-runs/<UTC time>-<sku>")
    judge: Path | None = _option("--ddp-judge", "RUN_DIR", path, "one run",
        "judge an earlier run's measurements; measure nothing")
    rehearse: bool = _option("--ddp-rehearse", None, on_or_off, "one run",
        "with --ddp-judge of a simulated run: exit as if it had been measured")
    resume: Path | None = _option("--ddp-resume", "RUN_DIR", path, "one run",
        "continue an interrupted run: measure only what is missing")
    launcher: str = _option("--ddp-launcher", "NAME", str, "measuring",
        f"how ranks start: {', '.join(LAUNCHERS)}; auto: ssh with --ddp-hosts, exec with "
        "--ddp-exec, slurm with several nodes or --ddp-slurm-args, else torchrun", default=AUTO)
    hosts: str | Path | None = _option("--ddp-hosts", "n1,n[2-4]|@FILE", hosts_or_file, "measuring",
        "machines to use, by ssh or --ddp-exec; or @ and a file with a name a line, "
        "or an OpenMPI or MPICH hostfile with slots")
    exec: tuple[str, ...] = _option("--ddp-exec", '"COMMAND {host}"', words_of_command, "measuring",
        'command that reaches a host instead of ssh: "kubectl exec -i {host} --"', default="")
    remote_python: str | None = _option("--ddp-remote-python", "PATH", str, "measuring",
        "Python on hosts reached by ssh or --ddp-exec; default: that of pytest")
    nodes: int | None = _option("--ddp-nodes", "N", whole(MOST_NODES), "measuring",
        "number of nodes; default: all named, all of the Slurm allocation, else 1")
    gpus_per_node: int | None = _option("--ddp-gpus-per-node", "N", whole(MOST_PER_NODE), "measuring",
        "GPUs (CPU: ranks) to use per node; default: all")
    world_sizes: tuple[int, ...] | None = _option("--ddp-world-sizes", "1,2,4", some_world_sizes, "one run",
        "test only requirements of these world sizes")
    slurm_args: tuple[str, ...] = _option("--ddp-slurm-args", '"ARGS"', arguments_of_srun, "measuring",
        "extra srun arguments, such as --partition=gpu --exclusive", default="")
    container: str | None = _option("--ddp-container", "IMAGE", str, "measuring",
        "run ranks in a container: Pyxis/Enroot, or Apptainer/Singularity for .sif")
    pass_env: tuple[str, ...] = _option("--ddp-pass-env", "NAME,PREFIX*", names_of_variables, "measuring",
        "extra environment variables to pass to ranks", default="")
    budget_s: float | None = _option("--ddp-budget", "10m", duration_s, "measuring",
        "wall time for measuring; requirements undecided by then are inconclusive")
    inactivity_limit_s: float = _option("--ddp-inactivity-limit", "10m", duration_s, "measuring",
        "end a gang that has recorded nothing for this long; at least 10m for imports", default="10m")
    unfit: str = _option("--ddp-unfit", "|".join(UNFIT), one_of(*UNFIT), "measuring",
        "nodes that fail a check before launch: measure, leave out, or stop",
        default=MEASURE)
    history: Path | None = _option("--ddp-history", "FILE", path, "judging",
        "SQLite file of earlier results; default: ddpscale-runs/history.sqlite here",
        in_environment=True)
    confidence: float = _option("--ddp-confidence", "0.95", confidence_level, "judging",
        "confidence of the intervals", default="0.95")
    rounds: int | None = _option("--ddp-rounds", "N", number_of_rounds, "measuring",
        "most rounds of a study, 8 or more; default: 32 (probes: 16)")
    block_s: float | None = _option("--ddp-block", "3s", block_length_s, "measuring",
        "length of a timed block; default: 2s on GPU, 0.75s on CPU")
    warm_up_s: float | None = _option("--ddp-warm-up", "SECONDS", length_of_warm_up_s, "measuring",
        "train all GPUs in one stretch before the rounds; a pace that falls counts; "
        "0 for none; default: 120 on GPUs where throughput is judged, else 0")
    profile_steps: int | None = _option("--ddp-profile", "N", number_of_profiled_steps, "measuring",
        "profile N steps of each arm, each study in a fresh gang; 5 if omitted", alone="5")
    nvtx: bool = _option("--ddp-nvtx", None, on_or_off, "measuring",
        "add NVTX ranges for nsys around steps and their parts, in timed rounds too")
    allow_incomplete: bool = _option("--ddp-allow-incomplete", None, on_or_off, "judging",
        "exit 0 even if a selected requirement was not measured")
    note: tuple[tuple[str, str], ...] = _option("--ddp-note", "KEY=VALUE", notes_of_run, "one run",
        "note for the report, repeatable: operator=NAME (of who runs pytest), "
        "site=PLACE, ticket=ID or any key; with --ddp-judge for the new report only", repeats=True)
    sku_was_given: bool = False
# fmt: on

    @property
    def is_isolated(self) -> bool:
        """Whether each study has its own gang: when profiling, so that no profiled process times a round."""
        return self.profile_steps is not None


# By attribute of `Settings`.
OPTIONS: dict[str, Option] = dict(zip(Settings._fields, _DECLARED, strict=False))
# Those that have an effect whatever is measured: where it runs, for how long, and what is kept of it.
OF_ANY_RUN = (
    "gpu_sku", "thresholds", "run_dir", "launcher", "hosts", "exec", "remote_python", "nodes", "gpus_per_node",
    "slurm_args", "container", "pass_env", "budget_s", "inactivity_limit_s", "note",
)  # fmt: skip


def refuse_unread_variables(environ: Mapping[str, str]) -> None:
    """Refuse variables that look like options but are not read: an ignored setting could change what is judged.

    Raises:
        OptionError: one is set; the message says what to write instead.
    """
    for option in OPTIONS.values():
        if environ.get(option.variable) and not option.in_environment:
            found = "is set, but not read from the environment"
            expected = f"{option.flag} on the command line, or {option.name} in the ini file"
            raise OptionError(option.variable, found, expected, f"Unset {option.variable}.")
    for name, instead in REMOVED.items():
        variable = name.replace("pytest --ddp-", "DDPSCALE_").replace("-", "_").upper()
        if name.startswith("pytest ") and environ.get(variable):
            raise OptionError(variable, "is set, but not read any more", f"instead: {instead}", f"Unset {variable}.")


class _Given(NamedTuple):
    """The text of a setting and where it was found; of an option that repeats, a line for each value."""

    text: str
    where: str


def settings_from(
    options: Mapping[str, Any], ini: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> Settings:
    """Read and check every setting. On the command line None or False means not given; in the ini file, empty does.

    Raises:
        OptionError: a value is invalid; the message says where it came from.
    """
    given = {name: _find(option, options, ini, environ) for name, option in OPTIONS.items()}
    values = {name: read_value(raw.where, raw.text, OPTIONS[name].parse) for name, raw in given.items() if raw.text}
    settings = Settings(**values, sku_was_given="gpu_sku" in values)
    _refuse_conflicts(settings, given)
    # Notes of the ini file, such as a site's, stay beside typed ones with other keys.
    noted = read_value("ini option ddp_note", ini.get("ddp_note", ""), notes_of_run)
    return settings._replace(note=tuple((dict(noted) | dict(settings.note)).items()))


def _find(option: Option, options: Mapping[str, Any], ini: Mapping[str, str], environ: Mapping[str, str]) -> _Given:
    typed = options.get(option.name)
    if typed not in (None, False):
        texts = typed if option.repeats else [str(typed)]
        if not all(texts):  # --ddp-judge=$RUN with RUN unset must not start a measurement
            raise OptionError(option.flag, "found no value", f"{option.flag}={option.metavar}")
        return _Given("\n".join(texts), option.flag)
    if option.in_environment and environ.get(option.variable):
        return _Given(environ[option.variable], option.variable)
    return _Given(ini.get(option.name, ""), f"ini option {option.name}")


def _refuse_conflicts(settings: Settings, given: Mapping[str, _Given]) -> None:
    """Refuse options that contradict each other. Raises OptionError."""
    typed = {name for name, raw in given.items() if raw.text and raw.where.startswith("--")}
    # Those of measuring only if typed, because a site's ini file and environment serve measuring and judging runs
    # alike. A resumed run is measured, in its own directory.
    of_measuring = [(name, "judge") for name, option in OPTIONS.items() if option.about == "measuring"]
    for name, beside in (("resume", "judge"), ("resume", "run_dir"), *of_measuring):
        one, other = given[name], given[beside]
        if name in typed and other.text:
            found = f"found {one.text!r} together with {other.where}={other.text}"
            raise OptionError(one.where, found, f"one of {one.where} and {other.where}")
    if "rehearse" in typed and settings.judge is None:
        found = "found without --ddp-judge"
        raise OptionError(given["rehearse"].where, found, "--ddp-judge=RUN_DIR of a simulated run")
    for name, value_s in (("block_s", settings.block_s), ("warm_up_s", settings.warm_up_s)):
        if (value_s or 0.0) > settings.inactivity_limit_s / 2:
            expected = f"at most half of --ddp-inactivity-limit ({settings.inactivity_limit_s:g} s)"
            raise _refused(given[name].where, given[name].text, expected)
