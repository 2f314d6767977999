"""Sentences about how gangs ended: who ended them, who holds one up, and which nodes did not come up.

The first line of each is complete in itself, for headlines; what the logs say follows on further lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_ddpscale.util.listing import alike, first_few


def _both(why: str, further: str, end: str = "") -> str:
    """One first line of both, before their other lines."""
    (head, *details), (other, *more) = why.split("\n"), further.split("\n")
    return "\n".join([f"{head.rstrip('.')}. {other}{end}", *details, *more])


OF_GANGS: Mapping[str, str | Callable[..., str]] = {
    # launch.gang_failure; ``stuck-…`` begin with the ranks or nodes that hold up all others
    "quoted": "{:\n}{:>its last output:}{:>last lines of its NCCL log:}",
    "in-phase": "{0}{1:? (study @}{2:?, arm @}{3:?, round @}{1:?)}",
    "no-rank-reported": "the gang {:?exited with code @|was stopped} without a report from a rank: {}{:>last output:}",
    "killed-from-outside": "{} was killed by {} from outside this run: check this machine's limits, the kernel's "
    "out-of-memory killer (dmesg), and other users",
    "torchrun-out-of-memory": "torchrun on {} was killed by the kernel's OOM killer (oom_kill in /proc/vmstat)",
    "rank-killed": "{} was killed by {} in {}{:?: the kernel's OOM killer ended it (oom_kill in /proc/vmstat)}",
    "rank-left": "{} left early, with exit code 0, in {}",
    "rank-exited": "{} exited with code {} in {}",
    "rank-failed": "{} failed in {}: {}: {}{:?; @}",
    "others-failed": "{:#more rank} failed after it",
    "look-for-xid": "look for an Xid: `dmesg | grep -i xid` on {}",
    "memory-in-use": "{:.1f} GiB of GPU {} were in use before the run ({:?@|no process visible here}); {}",
    "process": "process {} ({:?@|name not visible})",
    "stuck-agents": "the agent{0:+|s} on {0} sent nothing meanwhile: stopped, or the node or its link is down",
    "stuck-stopped": "{0} {0:+is|are} stopped (SIGSTOP, or a debugger) in {1}",
    "stuck-absent": "{0:#} of {1} ranks {0:+has|have} not come up: {0}, still importing torch? Look at the file system "
    "that holds the environment",
    "stuck-in-kernel": "{0} {0:+is|are} waiting for a device or a disk in {1}",
    "stuck-connecting": "{0} {0:+has|have} not begun to connect a communicator of NCCL, for which {1} "
    "{1:+waits|wait}, in {2}",
    "stuck-behind": "{0} are furthest behind of {1} ranks, in {3}: at least one of them is stuck",
    "stuck-one-behind": "{0}{2:?, @,} is furthest behind of {1} ranks, in {3}",
    "stuck-alone": "{}{:?, @,} is stuck in {}",
    "waits-for-device": "waiting for a device or a disk",
    "computes": "computing",
    "all-stuck": "all ranks are stuck in {:, }",
    "none-begun": "no rank has begun",
    # launch.gang
    "both": _both,
    "nodes-lost": "{0:folded} {0:+was|were} {1}: the node, its link{2:?, @} or its agent is down",
    "silent-for": "silent for {:g} s",
    "silent-to-partners": "silent, and other nodes' ranks lost their partners",
    "given-up": "given up by {}",
    "cut-off": "cut off ({})",
    "exit-code": "exit code {}",
    "all-silent": "all of {:nodes} fell silent at once: the link of this machine, or theirs, is down",
    "not-up": lambda whys: first_few(alike(dict(whys)), separator="; "),
    "other-version": "{:nodes} runs pytest-ddpscale {}, but this session runs {}: install the same version",
    "no-loopback": lambda whys: (
        f"127.0.0.1 cannot be reached on {first_few(alike({host: f'{host} ({why})' for host, why in whys}))}: bring up "
        "loopback with `ip link set lo up`"
    ),
    "no-answer-within": "no answer within {:g} s",
    "no-route": "{} finds no route to {} ({}), so ranks cannot connect: nodes must be able to resolve each other by "
    "the names that {} uses",
    "nodes-late": "{0} of {1} nodes came up within {2:g} s{3:?: }{3:nodes}{3:? did not}",
    "nothing-recorded": "ranks recorded nothing for {:g} s{:? (--ddp-inactivity-limit)}, so the gang was ended.",
    "too-long": "the gang ran longer than {:g} s, the limit for its plan, so it was ended.",
    "records-lost": "records from {} were lost: the connection to its agent drops or alters lines",
    # launch.launcher, launch.slurm
    "carrier-ended": "{}: {} ended with exit code {}; its last message: {}",
    "no-package": "{}: pytest-ddpscale is not installed for {} there: install version {}, or name another Python with "
    "--ddp-remote-python",
    "no-python": "{}: {} cannot be started there: name its Python with --ddp-remote-python",
    "no-ssh": "{} cannot be reached by ssh: {} (try `ssh {} true`)",
    "time-limit": "the job reached its time limit{:? of @}",
    "preemption": "the job was preempted",
    "job-requeue": "the job was requeued",
    "cancelled": "the job was cancelled",
    "node-failed": "a node of the job failed",
    "out-of-memory": "the job ran out of memory",
    "deadline": "the job reached its deadline",
    "step-left": "Processes of its Slurm step {} are left on the nodes, so no other gang is started; see "
    "`squeue --steps`",
    # launch.supervisor, run.evidence
    "needs-lost-nodes": "needs all {} nodes, but {:folded} was lost before",
    "ended-early": "its ranks ended early without an error: check for the kernel's out-of-memory killer (dmesg)",
    "interrupted-by": "{:?@ was received|Ctrl-C was pressed}",
    "died": "the run died before or while measuring this: its end was not recorded",
    "not-finished": "{:?interrupted|not started}: {}{:?; --ddp-resume=@ finishes it}",
}
