"""The command `ddpscale`: everything that is not a pytest run."""
# PYTHON_ARGCOMPLETE_OK (the marker that argcomplete's global completion looks for)

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path

from pytest_ddpscale import __version__
from pytest_ddpscale.calibrate.calibrate_command import add_calibrate
from pytest_ddpscale.compare.compare_command import add_compare
from pytest_ddpscale.compare.history_command import add_history
from pytest_ddpscale.errors import BadInput, GangError, OptionError
from pytest_ddpscale.settings import OPTIONS
from pytest_ddpscale.suites.registry import add_suite
from pytest_ddpscale.thresholds.commands import add_check, add_init, add_show
from pytest_ddpscale.util.command_parser import (
    USER_ERROR,
    CommandParser,
    Commands,
    adder,
    commands_of,
    each_run,
    parsed,
)
from pytest_ddpscale.util.nearest import did_you_mean
from pytest_ddpscale.util.packaged import THRESHOLDS, usual_thresholds

GANG_FAILED = 3
INTERRUPTED = 130  # the shells' code for Ctrl-C
# By the words of a command, after `ddpscale`.
EXAMPLES = {
    "init": "init --gpu-sku b200 site",
    "import paik": "import paik results --out ddpscale-runs/imported",
    "import pytorch-ddp": "import pytorch-ddp baseline.json",
    "thresholds show": "thresholds show --gpu-sku b200 --metric weak_scaling",
    "thresholds check": "thresholds check thresholds.yaml",
    "thresholds schema": "thresholds schema > thresholds.schema.json",
    "runs": "runs",
    "report": "report ddpscale-runs/latest",
    "culprits": "culprits ddpscale-runs/latest",
    "explain": "explain slow-gpu",
    "history": "history node07 --history site.sqlite",
    "calibrate": "calibrate ddpscale-runs/monday ddpscale-runs/tuesday --write site.yaml",
    "compare": "compare ddpscale-runs/before ddpscale-runs/after --fail-below 5%",
    "simulate": "simulate --gpu-sku b200 --gpus 128 --fault slow-gpu:100:1.06 --out rehearsal",
    "find-max-batch": "find-max-batch --gpu-sku b200 --workload resnet152-fp16",
    "make-dataset": "make-dataset /scratch/images --like tiny-224",
    "tune": "tune --gpu-sku b200 --workload resnet152-fp16",
    "suite pytorch-ddp": "suite pytorch-ddp --gpu-sku b200",
    "suite collectives": "suite collectives --gpu-sku b200",
    "suite inference": "suite inference --gpu-sku b200 --model resnet50",
    "suite data-parallel": "suite data-parallel --gpu-sku b200",
    "suite factors": "suite factors --gpu-sku b200",
    "suite input-pipeline": "suite input-pipeline --gpu-sku b200 --folder /scratch/images",
    "suite whole-run": "suite whole-run --gpu-sku b200 --epochs 5 --batch 128",
    "suite convergence": "suite convergence --gpu-sku b200 --ranks 1,2,4,8 --loss 0.5",
}
EXIT_CODES = """exit codes:
    0  done
    1  something failed, is missing, could not be measured, or is worse by more than asked
    3  ranks failed; 130: interrupted
    4  wrong option or other bad input
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: the command's own, 4 after bad input, 3 if ranks failed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As pytest does on a terminal without such a character, or for half a character in a file's name.
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = parser_of_commands()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions: run nothing
        _complete(parser)
    arguments = parsed(parser, argv)
    try:
        return arguments.run(arguments) or 0
    except (BadInput, GangError) as error:
        print(f"ddpscale: {error}", file=sys.stderr)
        return USER_ERROR if isinstance(error, BadInput) else GANG_FAILED
    except KeyboardInterrupt:
        print("ddpscale: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `ddpscale … | head`: also keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"ddpscale: {error.filename or 'a file'}: {error.strerror or error}.", file=sys.stderr)
        return USER_ERROR


def parser_of_commands() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser: argparse.ArgumentParser = CommandParser(prog="ddpscale", description="Companion of `pytest --gpu-sku=SKU`.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND")
    add_init(commands)
    tools = commands.add_parser("import", help="read another tool's result files").add_subparsers(metavar="TOOL")
    add = adder(_command(tools, "paik", _import_paik, "result files of willgpaik/pytorch-ddp-scaling-benchmark"))
    add("directory", "DIR", Path, "folder of its JSON files")
    add("--out", "RUN_DIR", Path, "run directory to make", required=True)
    add("--gpu-sku", "SKU", str, "SKU they were measured on; default: from the device name")
    add("--thresholds", "FILE", Path, f"default: {THRESHOLDS} here, else the packaged one")
    add = adder(_command(tools, "pytorch-ddp", _import_pytorch_ddp, "a JSON report of PyTorch's DDP benchmark"))
    add("file", "FILE", Path, "file written by its --json")
    thresholds = commands.add_parser("thresholds", help="show and check thresholds, print their JSON schema")
    actions = thresholds.add_subparsers(metavar="ACTION")
    add_show(actions, os.environ.get(OPTIONS["thresholds"].variable))
    add_check(actions)
    add = adder(_command(commands, "runs", _runs, "list the runs in a folder with their outcomes"))
    add("folder", "FOLDER", Path, "default: ddpscale-runs here", nargs="?")
    command = _command(commands, "report", _report, "print a run's outcome and rewrite its report files")
    adder(command)("directory", "RUN_DIR", Path, "or RUN_DIR/judged-N")
    command.add_argument("-v", "--verbose", action="store_true", help="print the table of all requirements")
    what = "list hosts that runs reject, clear or flag for inspection"
    command = _command(commands, "culprits", _culprits, what)
    adder(command)("directories", "RUN_DIR", Path, "or RUN_DIR/judged-N", nargs="+")
    rehearses = "treat simulated runs as if they had been measured"
    command.add_argument("--rehearse", action="store_true", help=rehearses)
    adder(command)("--format", None, str, "", "text", choices=("text", "tsv"))
    add = adder(_command(commands, "explain", _explain, "what a cause of a report is, and what to do about it"))
    add("cause", "ID", str, "as reports name it, such as slow-gpu")
    add_history(commands)
    add_calibrate(commands)
    add_compare(commands)
    _later(commands, "simulate", "simulate.simulate_command",
        "make a run directory of a cluster that was never measured, sound or with faults")  # fmt: skip
    _later(commands, "find-max-batch", "find_batch.find_max_batch",
        "find the largest per-GPU batch that trains within the memory, on this node's GPUs")  # fmt: skip
    add_suite(commands)
    _later(commands, "make-dataset", "datasets.make_dataset", "write a folder of JPEG images to train on, by class")
    for words, command in commands_of(parser):
        example = f"example:\n  ddpscale {EXAMPLES[words]}\n\n" if words in EXAMPLES else ""
        command.epilog = example + EXIT_CODES
    return parser


def _command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int | None], explanation: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=explanation)
    command.set_defaults(run=run)
    return command


def _later(commands: Commands, name: str, module: str, explanation: str) -> None:
    """Add a command whose options a module adds, which is imported once it is typed."""
    command = commands.add_parser(name, help=explanation)
    assert isinstance(command, CommandParser)  # as is its parent
    command.later = lambda parser: import_module(f"pytest_ddpscale.{module}").add_options(parser)


def _complete(parser: argparse.ArgumentParser) -> None:
    """Print completions for the shell and end the process."""
    import argcomplete
    from argcomplete.completers import FilesCompleter

    def offered(action: argparse.Action, prefix: str, **_: object) -> Iterable[str]:
        if "--gpu-sku" not in action.option_strings:
            return FilesCompleter()(prefix)
        from pytest_ddpscale.thresholds.loading import load_thresholds

        skus = load_thresholds(usual_thresholds()).thresholds.skus
        return {*skus, *(alias for sku in skus.values() for alias in sku.aliases)}

    for _, command in commands_of(parser):
        assert isinstance(command, CommandParser)
        command.complete()
    argcomplete.autocomplete(parser, default_completer=offered)  # type: ignore[arg-type]


def _import_paik(arguments: argparse.Namespace) -> None:
    from pytest_ddpscale.report.where_time_goes import breakdown
    from pytest_ddpscale.run.evidence import read_evidence
    from pytest_ddpscale.suites.paik_import import import_paik
    from pytest_ddpscale.thresholds.loading import load_thresholds
    from pytest_ddpscale.util.document import text_lines

    thresholds = load_thresholds(arguments.thresholds or usual_thresholds()).thresholds
    evidence = read_evidence(run := import_paik(arguments.directory, arguments.out, arguments.gpu_sku, thresholds))
    studies, sku = evidence.plan.studies, thresholds.skus[evidence.plan.sku]
    # PyTorch lets cuDNN compute fp32 in TF32, which has another peak.
    peaks = {study.id: sku.peak_tflops(study.workload) for study in studies if study.workload.precision != "fp32"}
    shown = breakdown(evidence, peaks)
    print(*text_lines(shown), f"Imported {len(studies)} studies into {run.path}.", sep="\n")
    print(f"Next: pytest --ddp-judge={run.path}")


def _import_pytorch_ddp(arguments: argparse.Namespace) -> None:
    from pytest_ddpscale.suites.ddp_benchmark import read_ddp_benchmark, results_of_file

    columns = _columns() if sys.stdout.isatty() else None
    print(*results_of_file(read_ddp_benchmark(arguments.file)).lines(columns=columns), sep="\n")


def _runs(arguments: argparse.Namespace) -> None:
    from pytest_ddpscale.report.listings import run_lines
    from pytest_ddpscale.run.run_directory import RUNS_FOLDER

    print(*run_lines(arguments.folder or RUNS_FOLDER, _columns()), sep="\n")


def _report(arguments: argparse.Namespace) -> int:
    from pytest_ddpscale.report.files import write_reports
    from pytest_ddpscale.report.terminal import brief_lines, table_lines
    from pytest_ddpscale.run.evidence import read_evidence
    from pytest_ddpscale.run.verdicts import open_judged, read_judged

    run, judged = open_judged(arguments.directory)
    if run.suite_json.exists():
        from pytest_ddpscale.suites.engine import report_suite

        return report_suite(run)
    judgement = read_judged(run, judged)
    record, columns = run.read_run(), _columns()
    answer, *others = brief_lines(judgement, columns, record)
    for line, _ in (answer, *(table_lines(judgement, columns, record) if arguments.verbose else others)):
        print(line)
    for problem in write_reports(judged, judgement, record, read_evidence(run)):
        print(problem, file=sys.stderr)
    page = judged.path / "report.html"
    if page.exists():
        print(f"report: {page}")
    return 0


def _columns() -> int:
    """Width of the terminal, or $COLUMNS; else, as in a pipe, 100."""
    return shutil.get_terminal_size((100, 24)).columns


def _culprits(arguments: argparse.Namespace) -> int:
    from pytest_ddpscale.report.culprits import HostFinding, read_findings, settled, text_lines, tsv_lines
    from pytest_ddpscale.run.run_json import WATERMARK

    findings: list[HostFinding] = []
    if arguments.rehearse and arguments.format == "text":
        print(f"Rehearsal. {WATERMARK}.")
    code = each_run(
        arguments.directories, lambda directory: findings.extend(read_findings(directory, rehearses=arguments.rehearse))
    )
    for line in (tsv_lines if arguments.format == "tsv" else text_lines)(settled(findings)):
        print(line)
    return code


def _explain(arguments: argparse.Namespace) -> None:
    from pytest_ddpscale.report.words.cause_kinds import CAUSES

    name = arguments.cause
    if name not in CAUSES:
        near = did_you_mean(name, CAUSES).removeprefix("; ").capitalize()
        raise OptionError("explain", f"found {name!r}", f"one of {', '.join(CAUSES)}", near)
    kind = CAUSES[name]
    print(f"{name}, severity {kind.severity} of 6, {kind.category}: {kind.action}.")
    print(textwrap.fill(kind.paragraph, _columns(), break_long_words=False, break_on_hyphens=False))


if __name__ == "__main__":  # where the command is not on PATH
    sys.exit(main())
