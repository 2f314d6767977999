"""Differences of configuration between two runs, which may explain a difference before any GPU does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pytest_ddpscale.compare.comparing import ComparedRun
from pytest_ddpscale.util.listing import first_few, first_nodes

# Ordered by their effect on speed.
_SOFTWARE = ("driver", "cuda_driver", "cuda", "torch", "nccl", "process_group", "kernel", "python", "pytest_ddpscale")
_BATCH = {"weak": "batch_size", "strong": "global_batch_size"}  # the batch that stays constant
_OF_WORKLOAD = ("compile", "cudnn_benchmark", "num_classes", "classifier_hidden", "feature_weights")
_OF_STUDY = ("rounds", "block_s", "warmup_s")


def configuration_differences(a: ComparedRun, b: ComparedRun) -> list[tuple[str, str, str]]:
    """Name, text of A and text of B of all known differences; what either run does not record is not compared."""
    pairs = zip(_facts(a), _facts(b), strict=True)
    found = [(name, str(of_a), str(of_b)) for (name, of_a), (_, of_b) in pairs if None not in (of_a, of_b)]
    found += _of_studies(a, b)
    topologies = ({host: one.topology for host, one in run.evidence.surveys.items() if one.topology} for run in (a, b))
    ours, theirs = topologies
    if others := [host for host in ours if theirs.get(host, ours[host]) != ours[host]]:
        found.append(("topology", f"nvidia-smi topo -m of {first_nodes(others)}", "differs there"))
    for name in sorted({*a.evidence.environment, *b.evidence.environment}):
        of_a, of_b = (run.evidence.environment.get(name, "not set") for run in (a, b))
        found.append((name, of_a, of_b))
    return [one for one in found if one[1] != one[2]]


def _facts(run: ComparedRun) -> Iterator[tuple[str, Any]]:
    """What each run has, by name; None if it is not known."""
    yield "SKU", run.record.sku
    how = f"imported from {run.record.source}: one sample each" if run.record.is_imported else "by pytest-ddpscale"
    yield "measured", "SIMULATED: no machine was measured" if run.is_simulated else how
    hosts, plan = run.hosts, run.evidence.plan
    yield "nodes", f"{len(hosts)}: {first_nodes(hosts)}" if hosts else plan.nodes
    yield "GPUs per node", plan.layout.ranks_per_node
    for name in _SOFTWARE:  # each version with its number of hosts, if there are several
        said = Counter(versions[name] for versions in run.versions.values() if name in versions)
        several = ", ".join(f"{version} on {count}" for version, count in sorted(said.items()))
        yield name, several if len(said) > 1 else next(iter(said), run.record.versions.get(name))


def _of_studies(a: ComparedRun, b: ComparedRun) -> Iterator[tuple[str, str, str]]:
    """Settings of studies with the same name; a difference that all studies share is given once."""
    ours, theirs = ({study.id: study for study in run.evidence.plan.studies} for run in (a, b))
    found: dict[tuple[str, str, str], list[str]] = {}
    shared = [name for name in ours if name in theirs]
    for name in shared:
        one, other = ours[name], theirs[name]
        trained = one.workload.differences(other.workload)
        values = [(field, *trained[field]) for field in (_BATCH[one.scaling], *_OF_WORKLOAD) if field in trained]
        values += [(field, getattr(one, field), getattr(other, field)) for field in _OF_STUDY]
        for field, of_a, of_b in values:
            if of_a != of_b:
                found.setdefault((field, str(of_a), str(of_b)), []).append(name)
    for (field, *of_both), names in found.items():
        yield field if len(names) == len(shared) else f"{field} of {first_few(names, 1)}", of_both[0], of_both[1]
