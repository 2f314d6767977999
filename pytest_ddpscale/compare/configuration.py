"""Differences of configuration between two runs, which may explain a difference before any GPU does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.util.listing import first_few, first_nodes

# Ordered by their effect on speed.
_SOFTWARE = ("driver", "cuda_driver", "cuda", "torch", "nccl", "process_group", "kernel", "python", "pytest_ddpscale")
_BATCH = {"weak": "batch_size", "strong": "global_batch_size"}  # the batch that stays constant
_OF_WORKLOAD = ("compile", "cudnn_benchmark", "num_classes", "classifier_hidden", "feature_weights")
_OF_STUDY = ("rounds", "block_s", "warmup_s")
_UNKNOWN = "not known"


@dataclass(frozen=True)
class ConfigurationDifference:
    """One difference, as text."""

    name: str
    a: str
    b: str


def configuration_differences(a: ComparedRun, b: ComparedRun) -> tuple[ConfigurationDifference, ...]:
    """All known differences; settings that either run does not record are not compared."""
    others = [pair for pair in _pairs(a, b) if pair[1] != pair[2] and _UNKNOWN not in pair]
    return tuple(ConfigurationDifference(name, of_a, of_b) for name, of_a, of_b in others)


def _pairs(a: ComparedRun, b: ComparedRun) -> Iterator[tuple[str, str, str]]:
    yield "SKU", a.record.sku, b.record.sku
    yield "measured", _how_measured(a), _how_measured(b)
    yield "nodes", _nodes(a), _nodes(b)
    yield "GPUs per node", str(a.evidence.plan.layout.ranks_per_node), str(b.evidence.plan.layout.ranks_per_node)
    for name in _SOFTWARE:
        yield name, _version(a, name), _version(b, name)
    yield from _topology(a, b)
    yield from _of_studies(a, b)
    for name in sorted({*a.evidence.environment, *b.evidence.environment}):
        yield name, a.evidence.environment.get(name, "not set"), b.evidence.environment.get(name, "not set")


def _how_measured(run: ComparedRun) -> str:
    if run.is_simulated:
        return "SIMULATED: no machine was measured"
    if run.record.is_imported:
        return f"imported from {run.record.source}: one sample each"
    return "by pytest-ddpscale"


def _nodes(run: ComparedRun) -> str:
    hosts = run.hosts
    return f"{len(hosts) or run.evidence.plan.nodes}: {first_nodes(hosts)}" if hosts else str(run.evidence.plan.nodes)


def _version(run: ComparedRun, name: str) -> str:
    """``580.1``, or each version with its number of hosts."""
    said = Counter(versions[name] for versions in run.versions.values() if name in versions)
    if len(said) < 2:
        return next(iter(said), run.record.versions.get(name, _UNKNOWN))
    return ", ".join(f"{version} on {count}" for version, count in sorted(said.items()))


def _topology(a: ComparedRun, b: ComparedRun) -> Iterator[tuple[str, str, str]]:
    """Differences in ``nvidia-smi topo -m`` of nodes that both runs surveyed."""
    texts = [{host: one.topology for host, one in run.evidence.surveys.items() if one.topology} for run in (a, b)]
    others = [host for host in sorted(set(texts[0]) & set(texts[1])) if texts[0][host] != texts[1][host]]
    if others:
        yield "topology", f"nvidia-smi topo -m of {first_nodes(others)}", "differs there"


def _of_studies(a: ComparedRun, b: ComparedRun) -> Iterator[tuple[str, str, str]]:
    """Settings of studies with the same name; a difference that all studies share is given once."""
    theirs, ours = _studies(b), _studies(a)
    found: dict[tuple[str, str, str], list[str]] = {}
    shared = [name for name in ours if name in theirs]
    for name in shared:
        one, other = ours[name], theirs[name]
        trained = one.workload.differences(other.workload)
        values = [(field, *trained[field]) for field in (_BATCH[one.scaling], *_OF_WORKLOAD) if field in trained]
        values += [(field, getattr(one, field), getattr(other, field)) for field in _OF_STUDY]
        for field, of_a, of_b in values:
            found.setdefault((field, str(of_a), str(of_b)), []).append(name)
    for (field, of_a, of_b), names in found.items():
        if of_a != of_b:
            yield field if len(names) == len(shared) else f"{field} of {first_few(names, 1)}", of_a, of_b


def _studies(run: ComparedRun) -> Mapping[str, Study]:
    return {study.id: study for study in run.evidence.plan.studies}
