"""The options of `ddpscale find-max-batch`. Every command imports this module; the search is imported when it runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import AUTO, count_up_to
from pytest_ddpscale.util.command_parser import typed

if TYPE_CHECKING:
    from pytest_ddpscale.node.survey import GpusHere

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

MULTIPLE = 8  # suits tensor cores; a finer search is not worth the launches
MOST_BATCH = 65_536
MOST_STEPS = 1_000
MOST_RANKS = 64
MOST_PIXELS = 10_000


def add_find_max_batch(commands: Commands, gpus_here: Callable[[], GpusHere]) -> None:
    """Add `ddpscale find-max-batch`."""
    command = commands.add_parser(
        "find-max-batch", help="find the largest per-GPU batch that trains within the memory, on this node's GPUs"
    )
    add = command.add_argument
    add("--gpu-sku", default=AUTO, metavar="SKU", help="a name or alias in the thresholds file; default: %(default)s")
    add("--thresholds", type=Path, metavar="FILE", help="default: thresholds.yaml here, else the packaged one")
    add("--workload", nargs="+", default=[], metavar="NAME", help="workloads of the SKU; default: all")
    add("--model", metavar="MODEL", help="torchvision model instead of --workload; needs --precision")
    add("--precision", choices=("fp32", "fp16", "bf16"), help="of --model")
    add("--image-size", type=typed(count_up_to(MOST_PIXELS)), metavar="PIXELS",
        help="of --model; default: that of the SKU's workloads, else 224")  # fmt: skip
    add("--least", type=typed(_batch), default=MULTIPLE, metavar="N", help="first batch to try; default: %(default)s")
    add("--most", type=typed(_batch), default=MOST_BATCH, metavar="N",
        help="largest batch to try; default: %(default)s")  # fmt: skip
    add("--steps", type=typed(_steps), default=12, metavar="N",
        help="least steps of each arm at each batch; default: %(default)s")  # fmt: skip
    add("--fraction", type=typed(_fraction), default=0.9, metavar="F",
        help="share of the memory that may be used; default: %(default)s")  # fmt: skip
    add("--ranks", type=typed(count_up_to(MOST_RANKS)), metavar="N",
        help="ranks that train at once; default: all GPUs (CPU: cores) of this node")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write the results as JSON")
    add("--write", type=Path, metavar="NEW.yaml",
        help="write a new thresholds file with the batches, which extends --thresholds; an existing file is never "
             "changed")  # fmt: skip
    command.set_defaults(run=lambda arguments: _find_max_batch(arguments, gpus_here))


def _find_max_batch(arguments: argparse.Namespace, gpus_here: Callable[[], GpusHere]) -> int:
    """Refuse options that contradict each other, then search. Returns the exit code. Raises DdpscaleError."""
    if arguments.least > arguments.most:
        found = f"found {arguments.least}, but --most is {arguments.most}"
        raise OptionError("--least", found, f"at most {arguments.most}")
    for option, given in (("--precision", arguments.precision), ("--image-size", arguments.image_size)):
        if given is not None and arguments.model is None:
            hint = "Workloads of the thresholds file have their own."
            raise OptionError(option, f"found {str(given)!r} without --model", "--model as well", hint)
    for option, given in (("--workload", arguments.workload), ("--write", arguments.write)):
        if given and arguments.model is not None:
            raise OptionError(option, "found beside --model, which may not be in the thresholds file", "one of them")
    if arguments.model is not None and arguments.precision is None:
        raise OptionError("--precision", "--model needs it", "--precision fp32, fp16 or bf16")
    from pytest_ddpscale.find_batch.batch_search import find_max_batch

    return find_max_batch(arguments, gpus_here)


def _batch(text: str) -> int:
    if re.fullmatch("[0-9]{1,6}", text) is None or not 0 < int(text) <= MOST_BATCH or int(text) % MULTIPLE:
        raise ValueError(f"a multiple of {MULTIPLE} up to {MOST_BATCH}")
    return int(text)


def _steps(text: str) -> int:
    from pytest_ddpscale.find_batch.batch_trial import STEPS_PER_BLOCK

    least = 2 * STEPS_PER_BLOCK  # a block of warm-up, and one that is timed
    steps = count_up_to(MOST_STEPS)(text)
    if steps < least:
        raise ValueError(f"at least {least} steps: the first ones only warm up")
    return steps


def _fraction(text: str) -> float:
    if re.fullmatch(r"0?\.\d+|1(\.0*)?", text) is None or float(text) < 0.05:
        raise ValueError("a number from 0.05 to 1")
    return float(text)
