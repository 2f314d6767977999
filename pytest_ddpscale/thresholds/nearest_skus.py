"""Suggests SKUs for an unknown name: only the same GPU, never another one.

A name gives a family (``a100``, ``rtx pro 6000``), a memory size and a form (SXM, PCIe, workstation card), or some of
them. A SKU of another family, memory size or form is another GPU with other bounds and is not suggested, however
similar the names look.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_ddpscale.plan.device_name import is_named
from pytest_ddpscale.thresholds.hardware import MEMORY_TOLERANCE
from pytest_ddpscale.thresholds.model import Sku

MOST_HINTS = 3
# Required similarity of names that are not GPU names: `tested-gpus` matches `tested-gpu`, but `gpu` not `cpu`.
_LIKENESS = 0.8
# The first match is the form: a Max-Q is also a workstation card, and all cards are PCIe cards.
_FORMS = {
    "max-q": "maxq",
    "workstation": "workstation|ws(?![a-z])",
    "server": "server",
    "nvl": "nvl",
    "sxm": "sxm|hgx|dgx",
    "pcie": "pcie",
}
_CARDS = frozenset({"max-q", "workstation", "server"})
_MEMORY = re.compile(r"(?<![a-z0-9])([0-9]{1,4}) ?(?:gib|gb|g)(?![a-z0-9])")
_BARE_NUMBER = re.compile(r"(?<![a-z0-9])([0-9]{2,3})(?![a-z0-9])")
_FAMILY = re.compile(
    r"(?<![a-z0-9])(rtx pro [0-9]{4}[a-z]?|rtx [0-9]{4}(?: ada| super| ti)?|[a-z]{1,2}[0-9]{1,4}[a-z]?)(?![a-z0-9])"
)
# Common spellings: `rtxpro6000`, `PRO 6000`, `RTX 6000 Pro`, `RTX 6000 Blackwell`; `a100sxm`, `Max-Q`, `NVLink`.
_SPELLINGS = (
    (r"[^a-z0-9]+", " "),
    (r"nvlink[0-9]*", " "),
    (r"max ?q", " maxq "),
    (r"(workstation|server|pcie|nvl|hgx|dgx|sxm[0-9]?)", r" \1 "),
    (r"(?<![a-z0-9])rtx", " rtx "),
    (r"(?<![a-z0-9])pro(?=[0-9])", "pro "),
    (r" +", " "),
    (r"rtx ([0-9]{4}[a-z]?) (?:pro|blackwell)(?![a-z0-9])", r"rtx pro \1"),
    (r"(?<!rtx )(?<![a-z0-9])pro (?=[0-9]{4})", "rtx pro "),
)


@dataclass(frozen=True)
class GpuName:
    """Properties of a GPU, parsed from a name.

    Attributes:
        families: possible family names; empty if it is not a GPU name.
        memory_gb: nominal device memory; None if not given.
        form: ``sxm``, ``pcie``, ``nvl``, ``server``, ``workstation`` or ``max-q``; empty if not given.
        numbers: numbers on their own, which may be a memory size without unit.
    """

    families: frozenset[str]
    memory_gb: float | None
    form: str
    numbers: tuple[float, ...] = ()

    def may_have(self, memory_gb: float | None) -> bool:
        """Whether the name is compatible with this memory size."""
        return None in (self.memory_gb, memory_gb) or _is_near(self.memory_gb or 0.0, memory_gb or 0.0)

    def may_be(self, form: str) -> bool:
        """Whether the name is compatible with this form."""
        if not self.form or not form or self.form == form:
            return True
        return self.form == "pcie" and form in _CARDS


def read_gpu_name(text: str) -> GpuName:
    """Parse a name given by a person or a driver."""
    spelled = text.casefold()
    for pattern, written in _SPELLINGS:
        spelled = re.sub(pattern, written, spelled)
    memory = _MEMORY.search(spelled)
    form = next((name for name, words in _FORMS.items() if re.search(rf"(?<![a-z])(?:{words})", spelled)), "")
    rest = _MEMORY.sub(" ", spelled)
    families = frozenset(_FAMILY.findall(rest))
    numbers = tuple(float(number) for number in _BARE_NUMBER.findall(_FAMILY.sub(" ", rest)))
    return GpuName(families, float(memory[1]) if memory else None, form, numbers)


def nearest_skus(asked: str, skus: Mapping[str, Sku]) -> list[str]:
    """SKUs that a name may mean, the nearest first; empty if it names a GPU that is not among them.

    Args:
        asked: a typed name or NVML's name of a GPU; not a name or alias of `skus`.
        skus: by name.

    Returns:
        Names of SKUs, or an alias with similar spelling.
    """
    asked = asked.strip()
    of_driver = [name for name, sku in skus.items() if sku.detect.name and is_named(asked, sku.detect.name)]
    if of_driver:
        return of_driver[:MOST_HINTS]
    said = read_gpu_name(asked)
    if not said.families:
        known = [*skus, *(alias for sku in skus.values() for alias in sku.aliases)]
        return difflib.get_close_matches(asked.casefold(), known, n=1, cutoff=_LIKENESS)
    alike = {name: _read_sku(name, sku) for name, sku in skus.items()}
    alike = {name: one for name, one in alike.items() if one.families & said.families}
    said = _with_bare_memory(said, alike.values())
    found = [name for name, one in alike.items() if said.may_have(one.memory_gb) and said.may_be(one.form)]
    found.sort(key=lambda name: (-(alike[name].form == said.form), -_likeness(asked, name, skus[name])))
    return found[:MOST_HINTS]


def _read_sku(name: str, sku: Sku) -> GpuName:
    """Parse a SKU's names; its form may come from its description."""
    named = [read_gpu_name(one) for one in (name, *sku.aliases)]
    described = read_gpu_name(sku.description)
    families = frozenset[str]().union(*(one.families for one in named)) or described.families
    form = next((one.form for one in (*named, described) if one.form), "")
    memory = next((one.memory_gb for one in named if one.memory_gb is not None), None)
    return GpuName(families, sku.detect.memory_gib if memory is None else memory, form)


def _with_bare_memory(said: GpuName, alike: Iterable[GpuName]) -> GpuName:
    """Add the memory size of names such as ``a100-40``: a number counts if a GPU of that family has that size."""
    if said.memory_gb is not None:
        return said
    sizes = [one.memory_gb for one in alike if one.memory_gb is not None]
    memory = next((number for number in said.numbers if any(_is_near(number, size) for size in sizes)), None)
    return GpuName(said.families, memory, said.form)


def _is_near(one: float, other: float) -> bool:
    """Whether two sizes may be the same GPU as reported by drivers: 180 and 192 GB may, 80 and 94 may not."""
    return abs(one - other) <= MEMORY_TOLERANCE * max(one, other)


def _likeness(asked: str, name: str, sku: Sku) -> float:
    asked = asked.casefold()
    return max(difflib.SequenceMatcher(None, asked, one.casefold()).ratio() for one in (name, *sku.aliases))
