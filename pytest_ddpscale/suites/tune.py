"""`ddpscale tune`: which settings make a workload train faster on these nodes, and by how much.

Each setting is an arm of its own, in interleaved rounds with the usual settings in one gang. An apparent gain is
measured again in further launches of new processes, together with gangs that set environment variables: launches differ
by more than their rounds show, so a gain is the mean over those launches, with its interval.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.settings import count_up_to, read_value
from pytest_ddpscale.suites.suite import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.tune_candidates import USUAL_SETTINGS, Candidate, candidates

if TYPE_CHECKING:
    from pytest_ddpscale.launch.supervisor import Judge
    from pytest_ddpscale.plan.planner import Pace
    from pytest_ddpscale.suites.suite_report import SuiteReport

# The first finds apparent gains, the others confirm them.
LAUNCHES = 5
USUAL_NAME = "usual"
# On GPUs. CPUs keep the default pace, because their rounds are long and rarely decide early.
MOST_ROUNDS = 16


class Tune(Suite):
    """Search for faster settings."""

    name = "tune"
    help = "find settings of DDP, the trainer and NCCL that train a workload faster on these nodes"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for the workload and the settings to try."""
        add = parser.add_argument
        add("--workload", metavar="NAME", help="workload of the SKU; default: its first")
        add("--model", metavar="MODEL", help="torchvision model instead; needs --precision and --batch")
        add("--precision", choices=("fp32", "fp16", "bf16"), help="of --model")
        add("--image-size", metavar="PIXELS", help="default: the workload's")
        add("--batch", metavar="N", help="images per GPU; default: the workload's")
        add("--try", dest="tried", metavar='"NAME=V1,V2 …"',
            help=f"settings; a name in capitals is an environment variable. Default on GPUs: {USUAL_SETTINGS['cuda']}. "
                 f"CPU: {USUAL_SETTINGS['cpu']}")  # fmt: skip

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan the first launch: a study of two arms for each setting."""
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
        """End a study as soon as it shows a difference, or that there is none worth a change."""
        from pytest_ddpscale.suites.tune_judge import TuneJudge

        return TuneJudge(plan, nodes.settings.confidence)

    def further(self, arguments: argparse.Namespace, nodes: SuiteNodes, measured: MeasuredSuite) -> Plan | None:
        """Plan further launches for apparent gains and environment variables."""
        from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
        from pytest_ddpscale.suites.tune_report import promising

        workload = _workload(arguments, nodes)
        pace = replace(nodes.pace(), rounds=FEWEST_ROUNDS)
        again = [replace(study, rounds=FEWEST_ROUNDS) for study in promising(measured)]
        variables = [one for one in candidates(_tried(arguments, nodes), workload) if one.environment]
        if variables:
            again += [_study(one, nodes, workload, pace) for one in (Candidate(), *variables)]
        launches = range(2, LAUNCHES + 1)
        # Reverse the order in every other launch, so that no gang always follows the same one.
        studies = [replace(one, launch=n) for n in launches for one in (again if n % 2 else again[::-1])]
        return replace(nodes.empty_plan(), studies=tuple(studies), launches=LAUNCHES) if studies else None

    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """Report recommendations, and settings without effect."""
        from pytest_ddpscale.suites.tune_report import tune_report

        return tune_report(measured)


def _tried(arguments: argparse.Namespace, nodes: SuiteNodes) -> str:
    return USUAL_SETTINGS[nodes.subject.device_type] if arguments.tried is None else str(arguments.tried)


def _study(one: Candidate, nodes: SuiteNodes, workload: Workload, pace: Pace) -> Study:
    """A study of a setting beside the usual ones; environment variables and their baseline get a gang of their own."""
    usual = Candidate().arm(nodes.world_size, workload.batch_size)
    is_alone = one == Candidate() or bool(one.environment)
    arms = (usual,) if is_alone else (usual, one.arm(nodes.world_size, workload.batch_size))
    named = replace(workload, name=f"{workload.name}+{one.name or USUAL_NAME}")
    return Study("weak", named, arms, pace.rounds, pace.block_s, pace.warmup_s, environment=one.environment)


def _workload(arguments: argparse.Namespace, nodes: SuiteNodes) -> Workload:
    """The workload to tune. Raises OptionError."""
    from pytest_ddpscale.find_batch.batch_trial import workload_of

    sku = nodes.subject.thresholds.thresholds.skus[nodes.subject.sku]
    pixels = read_value("--image-size", arguments.image_size, count_up_to(10**4)) if arguments.image_size else None
    if arguments.model is not None:
        if arguments.precision is None or arguments.workload is not None:
            raise OptionError("--model", f"found {arguments.model!r}", "--precision as well, and no --workload")
        found = workload_of(sku, arguments.model, arguments.precision, pixels, nodes.subject.device_type)
    else:
        name = arguments.workload or next(iter(sku.workloads), "")
        if name not in sku.workloads:
            raise OptionError("--workload", f"found {name!r}", f"one of {', '.join(sku.workloads) or 'none: --model'}")
        found = sku.workloads[name]
        found = replace(found, family=found.family.sized(pixels))
    if arguments.batch is not None:
        found = replace(found, batch_size=read_value("--batch", arguments.batch, count_up_to(10**6)))
    elif arguments.model is not None:
        raise OptionError("--model", f"found {arguments.model!r} without --batch", "--batch as well")
    return replace(found, data="synthetic")  # `suite input-pipeline` measures the cost of loading
