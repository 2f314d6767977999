"""thresholds.yaml of a site whose CPU trains a tiny model: runs of it are real, and short."""

from __future__ import annotations

_HEAD = """\
schema_version: 2
sources: {paper: nobody}
workloads:
  tiny: {model: squeezenet1_1, precision: fp32, image_size: 32, memory_format: contiguous, num_classes: 10}
skus:
"""


def tiny_thresholds(*requirements: str, before: tuple[str, ...] = ()) -> str:
    """The file, with requirements that any machine meets.

    Args:
        requirements: what differs of the rows, such as ``strong_scaling_speedup: {2: 1.9}, bound: 0.001``.
        before: the same of an earlier generation, which no machine is; without any it is left out.
    """
    skus = _sku("before", "{device: none}", before) if before else ""
    return f"{_HEAD}{skus}{_sku('cpu', '{device: cpu}', requirements)}"


def _sku(name: str, detect: str, requirements: tuple[str, ...]) -> str:
    rows = "".join(
        f"      - {{{requirement}, of: tiny, published: paper, because: made up}}\n" for requirement in requirements
    )
    batch = "{tiny: {per_gpu: 4, global: 8}}"
    return f"  {name}:\n    description: made up\n    detect: {detect}\n    batch: {batch}\n    requirements:\n{rows}"
