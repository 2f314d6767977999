"""Sentences of all reasons: an entry for each code, with its arguments in order.

An entry is a template (see `_Words`), or a function where words depend on several arguments. An argument that is a
reason is said, too; of a tuple of texts the first few are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from pytest_ddpscale.judge.stats import FAR
from pytest_ddpscale.plan.hardware import wheel_for
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.report.words.gangs import OF_GANGS
from pytest_ddpscale.run.reason import Reason, Why
from pytest_ddpscale.run.records import WITHOUT_OVERLAP
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import count_text, first_few, first_nodes, folded

Entry: TypeAlias = str | Callable[..., str]


def say(reason: Why) -> str:
    """The sentence, without a full stop."""
    if isinstance(reason, str):
        return reason
    try:
        entry, args = SENTENCES[reason.code], map(_formatted, reason.args)
        return entry.format(*map(_Words, args)) if isinstance(entry, str) else entry(*args)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # a record of another version
        return f"{reason.code} {reason.args}"


def _formatted(arg: Any) -> Any:
    if isinstance(arg, Reason):
        return say(arg)
    if isinstance(arg, tuple | list):
        return Listed(map(_formatted, arg))
    return arg


class Listed(list[Any]):
    """Arguments of which a sentence lists the first few; a format is the separator of all, ``; …`` of the first few;
    with ``nodes`` their names are folded, with ``folded`` all of them; with ``>`` each is a line below a title."""

    def __format__(self, spec: str) -> str:
        names = [*map(str, self)]
        if spec == "nodes":
            return first_nodes(names)
        if spec == "folded":
            return ", ".join(folded(names))
        if spec.startswith(">"):
            return "\n  ".join([f"\n{spec[1:]}", *names]) if names else ""
        if spec.endswith("…"):
            return first_few(names, separator=spec[:-1])
        return spec.join(names) if spec else first_few(names)


class _Words:
    """An argument in a template, with formats beside those of Python and of `Listed`.

    ``{:#node}`` is ``1 node`` or ``2 nodes``, ``{:#}`` the length of a list, ``{:%}`` and ``{:.1f%}`` per cent,
    ``{:+is|are}`` the first word of a list of one, else the second,
    ``{:? (and @ more)|, alone}`` the first words, with the value for @, if there is one, and else the others.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __format__(self, spec: str) -> str:
        kind, words, value = spec[:1], spec[1:], self.value
        if kind == "#":
            return count_text(value, words) if words else str(len(value))
        if kind == "?":
            text, _, otherwise = words.partition("|")
            return text.replace("@", format(value)) if value else otherwise
        if kind == "+":
            return words.split("|")[len(value) != 1]
        if spec.endswith("%"):
            return f"{100 * value:{spec[:-1]}} %" if words else percent(value)
        return format(value, spec)


def worded(verdict: Verdict) -> Verdict:
    """The verdict with the sentences of its reasons, where they are not written yet."""
    notes = dict.fromkeys((*verdict.notes, *map(say, verdict.remarks)))
    culprits = (replace(culprit, evidence=culprit.evidence or say(culprit.because)) for culprit in verdict.culprits)
    reason = verdict.reason or (say(verdict.because) if verdict.because else "")
    return replace(verdict, reason=reason, notes=tuple(notes), culprits=tuple(culprits))


_VARIABLES = {
    "reroutes": "; what stays unused is not tested",
    "slows": "; speeds are not the hardware's, so none passes and none accuses a device",
    "noted": "",
}


def _written(value: float, unit: str) -> str:
    return percent(value, 1) if unit == "fraction" else f"{value:.4g} {unit}"


def _node_alone(metric: str, value: float, unit: str, others: int, median: float) -> str:
    whom = "the other node" if others == 1 else f"the median of {others} other nodes"
    beside = f"; {whom} is {_written(median, unit)}" if others else ""
    return f"{metric} {_written(value, unit)} on this node alone{beside}"


def _nodes_missing(present: Listed, planned: int, absent: Listed, whys: Listed) -> str:
    who = f" ({present:nodes})" if present else ""
    missing = f"; missing: {absent:nodes}" if absent else ""
    why = f": {Listed(sorted({*whys}))}" if whys else ""
    return f"measured on {len(present)} of {planned} nodes{who}{missing}{why}"


def _misses(requirement: str, failed: int, of: int, noun: str, value: float, kind: str, others: float | None) -> str:
    name, unit = requirement.partition("[")[2].removesuffix("]"), METRICS[KINDS[kind].metric].unit
    failure = name if of == 1 else f"{failed} of its {of} {noun} fail {name}, the worst"
    beside = f"the median of all others is {others:.4g} {unit}" if others is not None else "no other to compare with"
    return f"{failure} at {value:.4g} {unit}; {beside}"


def _unlike(blocks: int, is_seeded: bool, is_certain: bool) -> str:
    whom = "from most of the ranks" if is_certain else "between the ranks"
    sentences = [f"parameters differ {whom} in {count_text(blocks, 'block')}"] * (blocks > 0)
    sentences += [f"gradients of one seeded step, each computed alone, differ {whom}"] * is_seeded
    return "; ".join(sentences + ["it is unknown which is right"] * (not is_certain))


def _unseen_loss(smallest_fault: float | None, is_speed_asked: bool) -> str:
    unseen = "has to be of an unknown size to be seen in training"
    if smallest_fault is not None:
        unseen = f"up to {percent(smallest_fault)} is not seen in training"
    elif not is_speed_asked:
        unseen = "is not rejected in training, whatever its size"
    return (
        f"no bound close to a published training speed of this GPU: a loss of all devices alike {unseen}; calibrate "
        "(`ddpscale calibrate`)"
    )


def _places_missing(present: int, expected: int, noun: str, absent: Listed, unseen: Listed) -> str:
    ranks = Listed(f"rank {' to '.join(map(str, dict.fromkeys(ends)))}" for ends in absent)
    no_results = f" (no results from {unseen})" if unseen else ""
    return f"measured on {present} of {expected} {noun}; {ranks} missing{no_results}"


def _at_clock(mhz: float, most_mhz: float, watts: float, limit_w: float, held: Listed) -> str:  # 0 is unknown
    ran = f"{mhz:,.0f}{f' of {most_mhz:,.0f}' if most_mhz else ''} MHz"
    drew = f"{watts:.0f}{f' of {limit_w:.0f}' if limit_w else ''} W" if watts else ""
    return ", ".join(filter(None, (ran, drew, *held)))


def _cuda_error(problem: str) -> str:
    return problem.rpartition("set an error? ")[2]  # after torch's guess at the cause


def _cuda_finds(count: int, listed: int, problem: str, name: str, driver: str | None, has_links: bool) -> str:
    error, cure = _cuda_error(problem), "look for Xid in dmesg"
    if "Error 802" in error and ("GB200" in name or "GB300" in name):
        cure = "check nvidia-imex and the NVLink switch trays"
    elif "Error 802" in error and has_links:
        cure = f"start nvidia-fabricmanager {driver}, the driver's version"
    why = f" ({error})" if error else ""
    return f"CUDA finds {count} of the {listed} GPUs that ranks may use{why}: {cure}"


def _old_driver(driver: str, torch: str | None, cuda: str) -> str:
    oldest = _OLDEST_DRIVERS.get(cuda.partition(".")[0], f"for CUDA {cuda}")
    needs = f"the driver supports CUDA {driver}, torch {torch or 'of unknown version'} needs {cuda}"
    return f"{needs}: driver {oldest} or later, or a wheel for CUDA {driver}"


def _without_kernels(capability: str, built: Listed) -> str:
    major, minor = map(int, capability.split("."))
    kernels = f"{capability}; it has {' '.join(built)}"
    return f"torch has no kernels for compute capability {kernels}; {wheel_for((major, minor))}"


def _ports(ports: Listed) -> str:
    return ", ".join(f"{device}:{port} is {state}" for device, port, state, _ in ports) or "it has none"


def _fewer_ports(active: int, more: int, others: int, least: int, most: int, ports: Listed) -> str:
    have = f"{more} of {others} other nodes have {least}{' or more' if most > least else ''}"
    kind = "EFA" if any(layer == "EFA" for *_, layer in ports) else "InfiniBand"
    return f"{active} {kind} ports are active; {have}; here: {_ports(ports)}"


# By major version of CUDA, from table 3 of the CUDA Toolkit release notes.
_OLDEST_DRIVERS = {"11": "450", "12": "525", "13": "580"}
_REPAIRS = {
    "page-pending": "a memory page waits to be retired",
    "row-failed": "a faulty memory row could not be remapped",
    "row-pending": "a memory row waits to be remapped",
}
# Of a slow rank or node: whether it is the odd one, and whether that explains the failure.
_DOUBT = (
    "{:?|; either may be the odd one: more nodes, or a bound of the site's own, would tell}"
    "{:?|; too little to explain the failure}"
)


def _slow_rank(
    slowdown: float, peers: int, times: int, rounds: int, is_always: bool, is_last: bool, *sure: bool
) -> str:  # fmt: skip
    whom = "the time of its only peer" if peers == 1 else f"the median of {peers} peers"
    when = f"{times} of {rounds} rounds"
    if not is_always:
        when = f"the last {when}" if is_last else f"{when} ({percent(times / rounds)})"
    return f"{slowdown:.2f}× {whom} in {when}{_DOUBT.format(*map(_Words, sure))}"


_ON_FIRST = ": {} on {}: {}; another driver, or a waiver, ends this"
_ODD_PROCESS = "the driver lists pid {}, which no process has: driver and library (libnvidia-ml.so) differ"
_IS_IT_RIGHT = "is the expectation right? This names no node for certain"
_UNREPEATED = "{} of {} ranks got another result when they repeated the seeded step of {}"
_THROTTLED = "clocks are throttled{1:? at @ °C}: {0:, }{2:?, @}"
_DIFFERS = "{} {}; {} of {} nodes have {}"
SENTENCES: Mapping[str, Entry] = {
    "text": "{}",  # said elsewhere
    "also": "also: {}",
    "all": lambda *reasons: "; ".join(reasons),
    "budget-spent": "--ddp-budget ran out before this was decided",
    "host-bound": "host-bound",
    "implausible": "implausible",
    "by-variable": "{} set ({}), so this says nothing of the hardware",
    "variable": lambda text, hosts, what, effect, why: (
        f"{text}{f' on {hosts:nodes}' if hosts else ''}: {what}{f'; on purpose: {why}' if why else _VARIABLES[effect]}"
    ),
    "sustained": "the last {4:.0f} s of {5:.0f} s of {0} in one stretch reach {1:.1f%} of the pace of the rounds "
    "({2:.1f%} to {3:.1f%}){7:? on @, the slowest node}{6:?: the paces of this workload are judged times that}",
    "no-stretch": "{} was not trained in one stretch that could be compared: what heat costs at full load is not seen",
    "judged-from": "judged from {} without a new measurement",
    "of-places": "{}: {}",
    # judge.stats
    "kept": "the whole interval keeps the bound",
    "missed": "the whole interval misses the bound",
    "inside": "the bound lies inside the interval",
    "far": f"no round comes within a factor of {FAR:g} of the bound",
    "early": "not final after {} of {} rounds: a trend within the noise or one odd round may still cross the bound",
    "varied": "{} rounds vary too much for an interval",
    "few": f"{{}} rounds; expected at least {FEWEST_ROUNDS}",
    "unsure": "{} rounds are too few for a confidence of {:g}",
    "impossible": "an impossible value was measured: {1}",
    "single-value": "one imported value: it has no interval of its own",
    "single-sample": "one imported sample: the interval comes from the standard deviation of its steps, taken as "
    "independent",
    "drift": lambda change, is_share, rounds: (
        f"not steady: {percent(change, 1, signed=True) if is_share else f'{change:+.3g}'} from the first to the last "
        f"third of {rounds} rounds; judged as if this continued"
    ),
    # judge.values
    "not-planned": "{} scaling of {} was not measured in this run",
    "not-probed": "{} was not probed in this run",
    "planned-differently": lambda *differences: (
        "measured differently: " + "; ".join(f"{field} {one}, required {other}" for field, one, other in differences)
    ),
    "broke": "{}",
    "interrupted": "{}",
    "one-node": "needs at least 2 nodes to spread ranks over; this run had one",
    "no-round": "no complete round of {:#rank} in {}",
    "no-round-of": "no complete round of {}",
    "no-baseline": "{} has no complete round of the arm {} to compare with",
    "not-read": lambda metric, *first: (
        f"{metric} could not be read on every rank{_ON_FIRST.format(*first) if first else ''}"
    ),
    "unsupported": "{} could not be done: {}",
    "places-missing": _places_missing,
    # judge.judged
    "perhaps-chance": "{}, but on one of {} {} this may be chance",
    "more-may-fail": "more rounds may fail further {}: undecided on {}",
    "one-of": "{0}, one of {1} {2}: {3}{5:? ({4} too: @)}",
    "lowest-of": "{}, the lowest of {} {}: {}",
    "kept-on-each": "{} on each of {} {}; {} is nearest to it",
    "nodes-missing": _nodes_missing,
    "node-alone": _node_alone,
    "most-fail-alike": lambda failed, planned, noun, passed=0: (
        f"{failed} of {planned} {noun} fail alike: is the bound right? This names no {noun[:-1]} for certain"
    ),
    "by-ports": "the bound is of the ports' line rate; a network with fewer uplinks needs a row with severity: fail",
    # judge.judged
    "incomplete-rounds": "only {} of {} rounds are complete; the others could change the result",
    "incredible": "implausible: {:.3g} is beyond {:g}; the measurement or its baseline was disturbed",
    "beyond-peak": "implausible: {:.4g} {} is more than {}",
    "impossible-pace": "implausible: {:.4g} {}/s of a rank in {} are more than {}",
    "of-data-sheet": "the {:.4g} of the data sheet",
    "of-cores": "{} CPU cores can compute",
    "of-any-hardware": "any hardware reaches ({:g})",
    "of-peak": "a peak of {:.4g} TFLOPS allows",
    "waits-for-host": "host-bound: GPUs were {:%} busy (below {:%}); a global batch of {} is too small for {} GPUs, so "
    "this result means nothing",
    "skipped-steps": "loss scaling skipped {:.0f} of {:.0f} optimizer steps",
    "other-training": "{}: the rest is not the training that was to be measured",
    "scaled-from-slow": "{} of its ranks are slow without communication ({}); good scaling relative to slow ranks is "
    "no pass",
    "stands-in": "SM activity, which is no higher, stands in for the utilization of {} on {}: {}",
    "waits": "stalled in {} rounds: {:.0f} W of {:.0f} W",
    "only-waits": "{} waits inside a kernel ({}), so its utilization proves nothing",
    "power-unknown": "power unknown: utilization could not be cross-checked",
    # judge.slow
    "slow-alone": "slow even without communication: {1} on {2}{3:? and @ more} ({4})",
    "slow-ranks": f"all {{}} ranks slow, {{:.2f}}× the median of their peers{_DOUBT}",
    "slow-rank": _slow_rank,
    "two-groups": "two groups of ranks: {} against {}, {:.2f}× apart even without communication",
    "starved": "all GPUs wait for the host: {:%} busy; look at CPU clocks, NUMA binding and data loaders",
    "less-busy": "{:%} busy; the median of {} peers is {:%}",
    "on-host": "{} on {}, {}",
    "stands-out": "{:.2f}× ({:.2f} … {:.2f}×) the median of {:#peer}",
    "look-at": "look at {:; …}: slower without communication, not clearly enough to be named by that",
    "slow-at-times": "slow at times: {:; …}",
    "no-own-pace": "no own pace in {} rank blocks of {} of {}, the first of rank {} on {}: {}",
    # judge.uniformity
    "no-own-round": "no complete round of {} in {}",
    "pace-unread": "own pace timed in every round on {} of {} GPUs",
    "node-by-own-pace": "{:.2f}× the median of {} peers by its own pace",
    "gpu-slow-at-times": "{} is slow at times{:? (and @ more)}: {}",
    "of-peers": "{0} at {2:.3f}× the median of {3:#peer}",
    "beyond-peers": "{}{:? (also @)}, certainly more than {:%} slower",
    "within-peers": "each of {} {} is within {:%} of its peers",
    "few-peers": "{}, more than {:%} slower, but fewer than {} are too few to tell which is the odd one: measure with "
    "more nodes, whose GPUs are peers too, or set a bound of the site's own",
    "perhaps-beyond": "not certain to be within {:%} of their peers: {}; {}",
    # judge.uniformity
    "missed-by-the-slowest": "{}; {:.1f%} against the slowest GPU does, too",
    "against-the-slowest": "against the slowest GPU {}",
    "by-the-slowest": "{:.1f%} against the slowest GPU: {}",
    "not-excused": "not excused as spread: {}",
    "perhaps-spread": "{:.1f%} against the slowest GPU, not shown to be spread alone: {}",
    "spread-excused": "{0:.1f%} against the slowest GPU keeps the bound ({1:.1f%} as measured): "
    "{2} is {3:.1f%} behind the median, limit {4:.3g%}",
    "pace-not-read": "the own pace of some of its GPUs was not read",
    "few-ranks": "its GPUs have too few peers",
    "gpu-beyond": "a GPU is more than {:.3g%} slower than its peers",
    "gpu-at-times": "a GPU is far slower than its peers at times",
    "gpus-in-groups": "GPUs fall into two groups",
    "nodes-not-compared": "nodes are not compared with each other",
    "node-beyond": "its node is more than {1:.3g%} slower",
    "alike-alone": "GPUs that compute alone differ less",
    "forward-lacking": "forward times lack in some rounds",
    "busy-unknown": "it is unknown how busy its GPUs were, so forward times may contain waiting for the host",
    "idle-at-times": "GPUs were idle at times: forward times may contain waiting",
    "heat-unknown": "heat and power of its GPUs are not known",
    "held-down": "a GPU was held down by heat, power supply or board",
    "excuses-too-much": "it would excuse more than the limit of a GPU",
    "pace-unknown": "the pace of its GPUs is not known yet",
    "gpu-open": "not every GPU is certain to be within {:.3g%} of its peers",
    "perhaps-groups": "its GPUs may be two groups",
    "node-open": "its node is not certain to be within theirs",
    # judge.links
    "slow-at": "communication is slow at {: and }",
    "slow-between": lambda hosts, why: f"{'the link between' if hosts[1:] else 'node'} {hosts: and } ({why})",
    "slow-pairs": "{3:?only local rank {3: and }: }{0:.3g} GB/s, others reach {1:.3g} GB/s ({2} measurements)",
    "stalls": "messages stall, as after a lost packet, in {} of {} pairs with it and {} of {} pairs without it",
    "misses": _misses,
    "gpu-or-its-links": "{}: the GPU or its own links are at fault",
    "gpu-or-these-links": "{}: the GPU or these links are at fault",
    "all-may-be-slow": "{}; within {:.3g%} of it, so all may be slow",
    "wrong-data": "{} wrong data in {} of {} rounds",
    "gpu-not-links": "moved wrong data with {} others: the GPU is at fault, not its links",
    "unasked-wrong-data": "wrong data in the probe {}, as seen by {}",
    # judge.agreement, judge.coverage
    "results-differ": "{}: results differ from those of other ranks",
    "unlike-others": _unlike,
    "speed-does-not-count": "{} (see {}); speed does not count",
    "unrepeated": f"{_UNREPEATED}, and no other study compared what each rank computes by itself",
    "repeated-elsewhere": f"{_UNREPEATED}: the model has no deterministic kernels; what each rank computes was "
    "compared in other studies",
    "gpu-errors": "{: and } ended its rank in {:#gang}{:?, while its peers did the same work without such an error|"
    " (not certain: the software, or the other end of a link, may be at fault)}; "
    "look for its Xid: `dmesg | grep -i xid` on {}",
    # judge.checks
    "new-uncorrected": "{} new uncorrectable memory errors under load",
    "note-new-corrected": "{} new corrected memory errors under load",
    "afterwards": lambda code, count: (
        f"{_REPAIRS.get(code, f'{count} new uncorrectable memory errors')} after ranks failed"
    ),
    "no-windows": "{} cannot be read {}",
    "windows": "in {} of {} windows under load",
    "few-polls": "with only {:.0f} polls in {:.0f} s under load",
    "low-pcie": lambda reading, lowest, least, windows: (
        f"PCIe {f'has {lowest} lanes' if reading == 'pcie_width' else f'runs at generation {lowest}'}, "
        f"expected {least}, {windows}"
    ),
    "no-load": "utilization never reached {:%}",
    "no-telemetry": "telemetry of only {} of {} GPUs",
    "low-utilization": "low utilization: {}, {}: {} of {:#device} below {:%}, least busy rank {} on {} with {:%}",
    "stalled": "stalled: {}: busy at nearly idle power: it waits inside a kernel",
    "at-clock": _at_clock,
    "slow-clock": "slow_clock: {}: busy at less than half of its clock",
    "power-limits": "power limit below the default: {}",
    "power-limit": "GPU {} on {} ({:g} W, default {:g} W)",
    # judge.checks
    "without-gpu": "{}: does not apply without a GPU",
    "at": "{}: {:?@: }{}",
    "of-check": "{}: {:?@: }{}",
    "no-report": "{} of {:#node} reported nothing",
    "no-end": "no load to the end of {}",
    "missing-data": "missing data: {:; }{:?; and @ more}{:?: @}",
    "as-expected": "{:#node} as expected",
    "not-as-expected": "{} of {:#node} not as expected: {:; }{:?; and @ more}",
    "most-nodes-fail": f"{{}} of {{}} nodes fail: {_IS_IT_RIGHT}",
    "most-gpus-fail": f"{{2}} GPUs of most nodes fail: {_IS_IT_RIGHT}",
    "most-outside-fail": "{} of {} nodes are throttled by a power brake: is it the facility? This names no node for "
    "certain",
    # judge.outcome
    "unmet": "{2:#} of {0:#requirement} {1}: {2}",
    "interrupted-after": "interrupted after {} of {:#requirement}",
    "nothing-judged": "no requirement was judged",
    "met": "{} of {:#requirement} {:?met, @ waived|passed}{:?, @ warned}",
    "not-selected": "{}; {} not selected",
    "nothing-to-accept": "{}: there is nothing to accept",
    "unpublished": "not decidable without site bounds: {} (no published bound covers all devices; calibration takes "
    "runs of 3 trusted nodes or more, better 10)",
    "missed-between": "{}, but between nodes a bound is missed: {}. Find the fault, or calibrate the bound: put the "
    "value of a healthy cluster into the thresholds file",
    "undecided-between": "{0}, but {1:#} undecided between nodes: {1}",
    "none-between": "{}, but none between nodes: no requirement on speed was met by all {} nodes together",
    "provisional-between": "{}; between nodes: provisional bounds",
    "wrong-probe": "{}, but {}, on which no requirement is judged",
    "silent-gpu": "{1} ({0})",
    "lost-host": "{1} was lost while measuring: {2} ({0})",
    "spoiled": "tests skipped, or failed otherwise: {}",
    "nodes-absent": "{0}, but {1:#} of {2} nodes not tested: {1}",
    "slow-link": "{}, but communication is slow at {}",
    "simulated": "simulated: no machine was measured ({})",
    "rerouted": "{}, but paths stay unused and are not tested: {}",
    "idle-gpus": "{0}, but none of them tested {1:#} of {2} GPUs: {1}",
    "pairs-missing": "{0}, but {1:?@ of {2} pairs of nodes not measured with each other|the search for a slow node or "
    "link did not end}{3:?: @}",
    "waiver-not-needed": "{}: not needed",
    "waives-failures-only": "{}: not applied, only a failure can be waived",
    "waiver-ended": "waiver by {} ended {}",
    "never-waives-wrong-data": "{}: not applied, wrong data cannot be waived",
    "never-waives-unknown": "{}: not applied, other places are open or not measured",
    "never-waives-between-nodes": "{}: not applied, a result between nodes cannot be waived",
    "unseen-loss": _unseen_loss,
    # run
    "other-hosts": "studies were measured on different hosts: {} on {:nodes}, {} on {:nodes}",
    "other-devices": "studies were measured on different devices: {} and {} differ in {}",
    "studies-with-other-software": "studies were measured with different software: {} with {} {}, {} with {} {}",
    "ranks-with-other-software": "ranks were measured with different software: {} with {} {}, {} with {} {}",
    "other-nodes-surveyed": "measured on {:nodes}, but the surveyed nodes are {:nodes}",
    "sessions": "measured in several sessions: resumed {:, }",
    "measured-again": "measured again when resumed (earlier attempts: superseded.jsonl): {}",
    "other-thresholds": "judged by another thresholds file than at the start, whose bounds decided when studies ended",
    # judge.check_rules
    "no-survey": "survey failed: {}",
    "no-reading": lambda name, why="": f"{name} cannot be read ({why or 'the driver gives no reason'})",
    "no-expectation": "the SKU's `node:` does not set {}",
    "full": "{:.2f} GiB are free where the run is written; expected {:g} GiB",
    "shared-memory-full": "{:.1f} MiB are free in /dev/shm; NCCL needs {:g} for each connection (--shm-size)",
    "few-cores": "{:#CPU core} for {:#rank}",
    "few-gpus": "{0} GPUs are visible; expected {1}{0:?|: {2}}",
    "none-visible": lambda problem, has_driver, gpus: problem or (
        "no NVIDIA driver is loaded" if not has_driver
        else f"CUDA_VISIBLE_DEVICES hides all {gpus} GPUs" if gpus else "the driver finds no GPU"
    ),
    "few-of-sku": "the driver has {} GPUs of this SKU; expected {}",
    "note-unused": "GPU {} of the node, which ranks do not use, does not answer: {}",
    "no-count": lambda problem: f"CUDA did not count its GPUs: {_cuda_error(problem)}",
    "cuda-finds": _cuda_finds,
    "cuda-lacks": _cuda_finds,
    "old-driver": _old_driver,
    "note-old-driver": _old_driver,
    "no-torch": "torch facts cannot be read: {}",
    "without-cuda": "torch {} was built without CUDA",
    "no-architectures": "torch {:?@|of unknown version} lists no architectures",
    "no-gpu": "no GPU is visible ({})",
    "lost": "lost: {}",
    "lost-needed": "lost: {}",
    "no-answer": "does not answer: {}",
    "other-name": "is a {}; expected a name like {}",
    "other-id": "has PCI device id {}; expected {: or }",
    "other-memory": lambda found, sizes: (
        f"has {found / 2**30:.1f} GiB; expected {sizes[0]:.1f} to {sizes[1]:.1f}"
    ),
    "mig-on": "MIG is enabled; expected the whole GPU",
    "ecc-mode": "{:?ECC is on; expected off|ECC is off; expected on}",
    "few-lanes-reached": "PCIe of GPU and slot reaches {} lanes; expected {}",
    "few-lanes": "PCIe has {} lanes; expected {}",
    "old-pcie": "PCIe of GPU and slot reaches generation {}; expected {}",
    "links": "{} NVLinks are up; expected {}",
    "without-kernels": _without_kernels,
    "without-bf16": "compute capability {} has no native bf16; expected 8.0 or later",
    "prohibited": "compute mode Prohibited; nvidia-smi -i {} -c 0",
    "foreign-process": lambda pid, name, memory: (
        f"foreign process {pid} ({name or 'name not visible'}) holds "
        f"{'unknown memory' if memory is None else f'{memory / 2**30:.1f} GiB'}"
    ),
    "no-process": f"its processes cannot be read: {_ODD_PROCESS}",
    "note-odd-process": f"{_ODD_PROCESS}; hardly any of its memory is in use",
    "throttled": _THROTTLED,
    "power-brake": _THROTTLED,
    "uncorrected": "{} uncorrectable memory errors since the driver was loaded",
    "note-corrected": "{} corrected memory errors since the driver was loaded",
    "note-remapped": "{} memory rows were remapped for uncorrectable errors",
    **_REPAIRS,
    "differs": _DIFFERS,
    "note-kernel": _DIFFERS,
    "unclear": "{0} {1}; nodes have {4:, }, no majority",
    "note-untried": "{}",
    "note-backend": f"torch communicates through {WITHOUT_OVERLAP}; it may not overlap all-reduce with the backward "
    "pass, and published figures were measured with ProcessGroupNCCL: `ddpscale tune --try TORCH_DIST_USE_NCCL2=0,1` "
    "compares both",
    "lost-under-load": "lost under load: {}",
    "lost-afterwards": "lost after ranks failed: {:?@|the driver no longer lists it}",
    "unmeasured": "lost under load: not measured in {} rounds in which its peers were",
    "ended-ranks": "{}",
    "note-suspect": "{}",
    "note-slow": "after ranks failed: {}",
    "no-survey-afterwards": lambda why: (
        f"NVML after ranks failed: {why or 'the NVIDIA driver is no longer loaded'}" + (
            "; a container loses its GPUs by `systemctl daemon-reload` on the host: start it anew"
            if "Unknown Error" in why else ""
        )
    ),
    "no-logs": "NCCL logged connections of {} of {} ranks",
    "no-log": lambda problem, lines: problem or f"unknown line in NCCL's log: {lines[0]}",
    "no-connections": "NCCL did not connect it to any other rank",
    "detour": "reaches GPUs of its own node through {:, }; expected NVLink or P2P",
    "no-nodes-joined": "no rank communicated with another node",
    "note-host-memory": "{:, } goes through host memory: no GPUDirect RDMA",
    "host-memory": "{:, } goes through host memory: no GPUDirect RDMA, which most other nodes have",
    "no-ports": "it uses TCP to other nodes, and its ports were not surveyed",
    "tcp": lambda fast, ports: (
        f"uses TCP to other nodes although {', '.join(fast)} {'is' if len(fast) == 1 else 'are'} active"
        if fast else f"uses TCP although other nodes have active InfiniBand or RoCE ports; here: {_ports(ports)}"
    ),
    "unmanaged-ports": "uses TCP to other nodes; {:, } in state INIT: a cable, but no subnet manager",
    "note-ports-down": lambda ports: f"uses TCP to other nodes; here: {_ports(ports)}",
    "note-roce": "uses TCP to other nodes; could {:, } do RoCE?",
    "fewer-ports": _fewer_ports,
    "note-fewer-ports": _fewer_ports,
    "not-measured-with-peers": "not measured in {:#round} of its peers",
    **OF_GANGS,
}  # fmt: skip
