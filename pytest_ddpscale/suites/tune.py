"""`ddpscale tune`: which settings make a workload train faster on these nodes, and by how much.

Each setting is an arm of its own beside the usual one, in interleaved rounds of one gang. What looks like a gain there
is measured again in further launches of new processes, beside gangs with variables of the environment: processes differ
from launch to launch by more than their rounds tell, so that a gain is the mean over those launches with its interval.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.settings import count_up_to, read_value
from pytest_ddpscale.suites.suite import MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.tune_candidates import USUAL_SETTINGS, Candidate, candidates

if TYPE_CHECKING:
    from pytest_ddpscale.launch.supervisor import Judge
    from pytest_ddpscale.plan.planner import Pace
    from pytest_ddpscale.suites.suite_report import SuiteReport

# The first finds what may be gains, the others measure those.
LAUNCHES = 5
USUAL_NAME = "usual"
# Of GPUs; a CPU's rounds are long, and no reason to end them comes soon.
MOST_ROUNDS = 16


class Tune(Suite):
    """The search."""

    name = "tune"
    help = "find settings of DDP, the trainer and NCCL that train a workload faster on these nodes"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """What is trained, and what is tried."""
        add = parser.add_argument
        add("--workload", metavar="NAME", help="of the SKU; default: its first")
        add("--model", metavar="MODEL", help="another one, of torchvision; with --precision")
        add("--precision", choices=("fp32", "fp16", "bf16"), help="of --model")
        add("--image-size", metavar="PIXELS", help="default: as the workload has it")
        add("--batch", metavar="N", help="images per GPU; default: as the workload has it")
        add("--try", dest="tried", metavar='"NAME=V1,V2 …"',
            help=f"settings; a name in capitals is a variable of the environment. GPU: {USUAL_SETTINGS['cuda']}. "
                 f"CPU: {USUAL_SETTINGS['cpu']}")  # fmt: skip

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """A study of two arms for each setting, in the first launch."""
        workload = _workload(arguments, nodes)
        asked = _tried(arguments, nodes)
        tried = read_value("--try", asked, lambda text: candidates(text, workload))
        if not tried:
            raise OptionError("--try", f"found {asked!r}", "a setting that the workload does not have already")
        pace, is_cpu = nodes.pace(), nodes.subject.device_type == "cpu"
        pace = replace(pace, rounds=nodes.settings.rounds or (pace.rounds if is_cpu else MOST_ROUNDS))
        in_a_gang = [one for one in tried if not one.environment]
        studies = tuple(_study(one, nodes, workload, pace) for one in in_a_gang)
        return replace(nodes.empty_plan(), studies=studies, launches=LAUNCHES)

    def judge_of(self, plan: Plan, nodes: SuiteNodes) -> Judge | None:
        """Ends a study that shows a difference, or that there is none worth having."""
        from pytest_ddpscale.suites.tune_judge import TuneJudge

        return TuneJudge(plan, nodes.settings.confidence)

    def further(self, arguments: argparse.Namespace, nodes: SuiteNodes, measured: MeasuredSuite) -> Plan | None:
        """What looks like a gain, and variables of the environment, in launches of their own."""
        from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
        from pytest_ddpscale.suites.tune_report import promising

        workload = _workload(arguments, nodes)
        pace = replace(nodes.pace(), rounds=FEWEST_ROUNDS)
        again = [replace(study, rounds=FEWEST_ROUNDS) for study in promising(measured)]
        variables = [one for one in candidates(_tried(arguments, nodes), workload) if one.environment]
        if variables:
            again += [_study(one, nodes, workload, pace) for one in (Candidate(), *variables)]
        launches = range(2, LAUNCHES + 1)
        # Every other launch backwards, so that no gang always follows another.
        studies = [replace(one, launch=n) for n in launches for one in (again if n % 2 else again[::-1])]
        return replace(nodes.empty_plan(), studies=tuple(studies), launches=LAUNCHES) if studies else None

    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """Recommendations, what made no difference, and settings to paste."""
        from pytest_ddpscale.suites.tune_report import tune_report

        return tune_report(measured)


def _tried(arguments: argparse.Namespace, nodes: SuiteNodes) -> str:
    return USUAL_SETTINGS[nodes.subject.device_type] if arguments.tried is None else str(arguments.tried)


def _study(one: Candidate, nodes: SuiteNodes, workload: Workload, pace: Pace) -> Study:
    """A setting beside the usual ones; a variable of the environment, and what it is compared with, by itself."""
    usual = Candidate().arm(nodes.world_size, workload.batch_size)
    is_alone = one == Candidate() or bool(one.environment)
    arms = (usual,) if is_alone else (usual, one.arm(nodes.world_size, workload.batch_size))
    named = replace(workload, name=f"{workload.name}+{one.name or USUAL_NAME}")
    return Study("weak", named, arms, pace.rounds, pace.block_s, pace.warmup_s, environment=one.environment)


def _workload(arguments: argparse.Namespace, nodes: SuiteNodes) -> Workload:
    """What is trained. Raises OptionError."""
    from pytest_ddpscale.find_batch.trial_study import workload_of

    sku = nodes.subject.thresholds.thresholds.skus[nodes.subject.sku]
    pixels = read_value("--image-size", arguments.image_size, count_up_to(10**4)) if arguments.image_size else None
    if arguments.model is not None:
        if arguments.precision is None or arguments.workload is not None:
            raise OptionError("--model", f"found {arguments.model!r}", "--precision beside it, and no --workload")
        found = workload_of(sku, arguments.model, arguments.precision, pixels, nodes.subject.device_type)
    else:
        name = arguments.workload or next(iter(sku.workloads), "")
        if name not in sku.workloads:
            raise OptionError("--workload", f"found {name!r}", f"one of {', '.join(sku.workloads) or 'none: --model'}")
        found = sku.workloads[name] if pixels is None else replace(sku.workloads[name], image_size=pixels)
    if arguments.batch is not None:
        found = replace(found, batch_size=read_value("--batch", arguments.batch, count_up_to(10**6)))
    elif arguments.model is not None:
        raise OptionError("--model", f"found {arguments.model!r} without --batch", "--batch beside it")
    return replace(found, data="synthetic")  # what loading costs says `suite input-pipeline`
