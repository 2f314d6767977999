"""How often a small cluster gets the correct verdict from the SKU ``cpu`` as shipped: docs/evidence.

    python benchmarks/lab_acceptance.py --launches 10 --json lab_acceptance.json
    python benchmarks/lab_acceptance.py --launches 1 --keep runs
    python benchmarks/lab_acceptance.py --launches 1 --nodes 6 --starved 0.3

The cluster is the lab of tests/slurm_lab: a real Slurm whose nodes are namespaces of this machine, with one rank each
and an even share of its cores. Like those tests it needs root, Slurm and munge. Half of the launches run on healthy
nodes; in the other half the cable of one node is limited to a rate, each time of the next node. A launch on healthy
nodes is right if they are accepted and no node is named; with a slow cable if they are rejected and only that node is
named. With --starved the next node also has little CPU once ranks are up, and both nodes have to be named. Bounds on
the speed of one rank need an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.run.run_directory import RunDirectory

if TYPE_CHECKING:
    from tests.slurm_lab.lab import SlurmLab

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 900
RIGHT_SHARE, MOST_S = 0.9, 240.0


@dataclass(frozen=True)
class Launch:
    """One acceptance of the whole cluster.

    Attributes:
        number: counted from 1.
        slow: the node behind a slow cable; empty if all are healthy.
        starved: the node with little CPU; empty if none.
        seconds: from submitting the job to its end.
        outcome: of the run, or the job's state if there is none.
        named: hosts that any verdict names.
        missed: requirements that did not pass, with value and bound.
    """

    number: int
    slow: str
    starved: str
    seconds: float
    outcome: str
    named: tuple[str, ...]
    missed: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Whether the cluster got the correct verdict."""
        faulty = tuple(sorted(filter(None, (self.slow, self.starved))))
        return (self.outcome, self.named) == ("rejected" if faulty else "accepted", faulty)


def launch(lab: SlurmLab, folder: Path, number: int, slow: str, starved: str, share: float) -> Launch:
    """Submit an acceptance of all nodes like an operator, and wait for its end."""
    from tests.integration.lab_runs import LabRun
    from tests.slurm_lab.polling import wait_until

    names = [node.name for node in lab.nodes]
    run = RunDirectory(folder / f"{number}-{slow or 'healthy'}")
    command = [
        sys.executable, "-m", "pytest", "--gpu-sku=cpu", "--ddp-launcher=slurm", "--ddp-gpus-per-node=1",
        f"--thresholds={ROOT / 'thresholds.yaml'}", f"--ddp-run-dir={run.path}", "-p", "no:cacheprovider",
        str(ROOT / "acceptance"),
    ]  # fmt: skip
    began_s = time.perf_counter()
    job = lab.submit(" ".join(["exec", *command]), f"--nodes={len(names)}", f"--nodelist={','.join(names)}", cwd=folder)
    if starved:  # with little CPU it takes a minute to import torch
        wait_until(lambda: bool(run.read_records()), LIMIT_S, "ranks", seen=lambda: lab.job_output(job))
        node = lab.node(starved)
        node.cpu_quota(max(0.1, share * (node.cores or 0.0)))
    state = lab.wait_for_job(job, LIMIT_S)
    seconds = time.perf_counter() - began_s
    if not run.verdicts_json.exists():
        print(lab.job_output(job), file=sys.stderr)
        return Launch(number, slow, starved, seconds, state.lower(), (), ())
    ran = LabRun(state, lab.job_output(job), run)
    verdicts = ran.judgement["verdicts"]
    missed = tuple(f"{one['id']} {one['outcome']} {one['value']}" for one in verdicts if one["outcome"] != "passed")
    return Launch(number, slow, starved, seconds, ran.judgement["outcome"], tuple(sorted(ran.accused)), missed)


def launches(arguments: argparse.Namespace, folder: Path) -> list[Launch]:
    """All launches in one lab, alternately healthy and slow, so a busier machine disturbs both alike."""
    from tests.slurm_lab.lab import SlurmLab

    done = []
    with SlurmLab(folder / "lab", nodes=arguments.nodes) as lab:
        for number in range(1, arguments.launches + 1):
            behind = f"n{(number - 1) % arguments.nodes + 1}"
            after = f"n{number % arguments.nodes + 1}" if arguments.starved else ""
            for slow, starved in (("", ""), (behind, after)):
                lab.share_cores()
                if slow:
                    lab.node(slow).slow_link(arguments.rate)
                done.append(launch(lab, folder, number, slow, starved, arguments.starved or 1.0))
                print(table(HEADER, [row(done[-1])]), *done[-1].missed, sep="\n", flush=True)
                lab.heal()
    return done


HEADER = ("launch", "slow cable", "little CPU", "seconds", "outcome", "named", "right")


def row(one: Launch) -> tuple[str, ...]:
    """A row of the table."""
    named = ", ".join(one.named) or "nobody"
    return (
        str(one.number),
        one.slow or "none",
        one.starved or "none",
        f"{one.seconds:.0f}",
        one.outcome,
        named,
        "yes" if one.is_right else "NO",
    )


def summary(done: Sequence[Launch], what: str) -> str:
    """``healthy: 10 of 10 right, 97 to 121 s, median 104``."""
    right, seconds = sum(one.is_right for one in done), [one.seconds for one in done]
    times = f"{min(seconds):.0f} to {max(seconds):.0f} s, median {statistics.median(seconds):.0f}"
    return f"{what}: {right} of {len(done)} right, {times}"


def main() -> None:
    """Launch, print a table and a summary; exit status 1 if too many are wrong, or one takes too long."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--launches", type=positive_int, default=10, metavar="N", help="launches of each kind; default: %(default)s"
    )
    parser.add_argument("--nodes", type=positive_int, default=4, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--rate", default="50mbit", help="rate of the slow cable, in tc's notation; default: %(default)s"
    )
    parser.add_argument("--starved", type=float, metavar="SHARE", help="CPU left to the node after it; default: all")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run directories here")
    arguments = parser.parse_args()
    sys.path.append(str(ROOT))
    from tests.slurm_lab.needs import why_not

    reason = why_not()
    if reason is not None:
        parser.error(f"no lab can run here: {reason}")
    with tempfile.TemporaryDirectory(prefix="lab-acceptance-") as name:
        folder = (arguments.keep or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        done = launches(arguments, folder)
    kinds = {"healthy": [one for one in done if not one.slow], "slow cable": [one for one in done if one.slow]}
    print(table(HEADER, [row(one) for one in done]))
    for what, of_kind in kinds.items():
        print(summary(of_kind, what))
    keep(
        arguments.json,
        "lab_acceptance",
        {"rate": arguments.rate, "starved": arguments.starved, "launches": [asdict(one) for one in done]},
    )
    shares = [sum(one.is_right for one in of_kind) / len(of_kind) for of_kind in kinds.values()]
    if min(shares) < RIGHT_SHARE or max(one.seconds for one in done) > MOST_S:
        sys.exit(1)


if __name__ == "__main__":
    main()
