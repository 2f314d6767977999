"""Loads a thresholds file with the files that it extends: valid as a whole, or refused with all that is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pytest_ddpscale.errors import SkuError, ThresholdsError
from pytest_ddpscale.thresholds.compiling import Compiler
from pytest_ddpscale.thresholds.consistency import (
    contradictions,
    odd_names,
    remarks,
    why_incomparable,
    why_more_than_changed,
)
from pytest_ddpscale.thresholds.form import MOST_SKUS
from pytest_ddpscale.thresholds.model import Requirement, Thresholds
from pytest_ddpscale.thresholds.reading import dotted, what_next
from pytest_ddpscale.thresholds.validating import Layer, first_of, nearest_place, read_layer
from pytest_ddpscale.thresholds.waiver import today
from pytest_ddpscale.util.packaged import THRESHOLDS, packaged

DEEPEST_EXTENSION = 4
_NUMBER = re.compile("[a-z]*[0-9]+[a-z]*")  # with the letters around it, which tell a B200 from a GB200
_LIKENESS = 0.75  # `a100-40gb` suggests `a100-sxm4-40gb`; `gpu` does not suggest `cpu`
_OF_ANOTHER_GPU = "Another GPU needs a section of its own: docs/thresholds.md has one."
PACKAGED = "packaged"  # what `extends` calls the packaged file


@dataclass(frozen=True)
class ThresholdsFile:
    """A valid thresholds file.

    Attributes:
        layers: the files it extends, then itself.
        thresholds: its SKUs.
        below: the file that it extends; None if it extends none with SKUs.
    """

    layers: tuple[Layer, ...]
    thresholds: Thresholds
    below: ThresholdsFile | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self.layers[-1].path

    @property
    def sha256(self) -> str:
        """Digest of its bytes, which a run records with its verdicts."""
        return self.layers[-1].sha256

    @property
    def digests(self) -> str:
        """Digests of all its files, itself first; equal if two runs were judged by the same thresholds."""
        return "+".join(layer.sha256 for layer in reversed(self.layers))

    @property
    def extended(self) -> tuple[tuple[str, str], ...]:
        """Path and SHA-256 of each file that it extends, the nearest first."""
        return tuple((str(layer.path), layer.sha256) for layer in reversed(self.layers[:-1]))

    @property
    def rests_on_packaged(self) -> bool:
        """Whether it is the packaged file, or extends it."""
        return self.layers[0].is_packaged

    @property
    def all_below(self) -> Iterator[ThresholdsFile]:
        """Every file with SKUs that it extends, directly or not, the nearest first."""
        if self.below is not None:
            yield self.below
            yield from self.below.all_below

    def remarks(self, sku: str) -> list[str]:
        """What is odd about rows of a SKU, and may be meant, each with its line."""
        return [f"{remark.where}: {sentence}" for remark, sentence in remarks(self.thresholds.skus[sku])]

    def where(self, *at: str | int) -> str:
        """``file:line`` of an entry in the nearest file that has it, or of the closest entry above it."""
        return nearest_place(self.layers, *at).where

    def sku_name(self, wanted: str, where: str = "--gpu-sku") -> str:
        """The canonical name of the requested SKU.

        Args:
            wanted: a name or alias, in any case.
            where: the option or file that names it, for the message.

        Raises:
            SkuError: unknown SKU; the message has the nearest names.
        """
        name = self.thresholds.canonical_name(wanted)
        if name is not None:
            return name
        known = [*self.thresholds.skus, *(a for sku in self.thresholds.skus.values() for a in sku.aliases)]
        near, number = nearest_names(wanted, known), len(self.thresholds.skus)
        such = f", such as {', '.join(near)}" if near else ""
        expected = f"one of its {number} SKUs{such} (`ddpscale thresholds show` lists them)"
        raise SkuError(where, f"{self.path} has no SKU {wanted!r}", expected, _OF_ANOTHER_GPU)


def nearest_names(wanted: str, known: Sequence[str]) -> list[str]:
    """Up to three similar names that have all numbers of the requested one: h100 and gh200 do not suggest h200."""
    folded = wanted.strip().casefold()
    numbers = set(_NUMBER.findall(folded))
    of_same = {name.casefold(): name for name in known if numbers <= set(_NUMBER.findall(name.casefold()))}
    return [of_same[near] for near in difflib.get_close_matches(folded, list(of_same), n=3, cutoff=_LIKENESS)]


def load_thresholds(path: Path, *, of_earlier_run: bool = False) -> ThresholdsFile:
    """Read a thresholds file and those that it extends.

    Args:
        path: the file.
        of_earlier_run: whether it stays as it was when a run began, so that waivers in it may have ended since.

    Raises:
        ThresholdsError: something is wrong in one of them: the first mistake, with the others. The message has
            file:line, what was found, what was expected and what to do.
    """
    return _compiled(_layers(path), date.min if of_earlier_run else today())


def _layers(path: Path) -> tuple[Layer, ...]:
    """The files that a file extends, then itself."""
    layers = [read_layer(path)]
    while (target := layers[0].form.extends) is not None:
        mark = layers[0].document.place("extends")
        if len(layers) > DEEPEST_EXTENSION:
            raise mark.refusal(f"more than {DEEPEST_EXTENSION} files that extend each other", "fewer")
        below = read_layer(packaged(THRESHOLDS) if target == PACKAGED else mark.path.parent / target, mark)
        if any(below.path.samefile(layer.path) for layer in layers):
            raise mark.refusal(f"extends {target!r}, which extends this file", "no circle")
        layers.insert(0, below)
    return tuple(layers)


def _compiled(layers: tuple[Layer, ...], least_day: date) -> ThresholdsFile:
    below = _compiled(layers[:-1], least_day) if any(layer.form.skus for layer in layers[:-1]) else None
    names = dict.fromkeys(name for layer in layers for name in layer.form.skus).keys()
    if not names or len(names) > MOST_SKUS:
        raise nearest_place(layers, "skus").refusal(f"{len(names)} SKUs under `skus`", f"1 to {MOST_SKUS}")
    compiler = Compiler(layers, least_day)
    compiled = {name: compiler.sku(name) for name in names}
    skus = {name: sku for name, sku in compiled.items() if sku is not None}
    file = ThresholdsFile(layers, Thresholds(skus), below)
    broken = names - skus.keys()
    problems = compiler.problems
    for name, at, sentence in _nonsense(file, broken):
        place = nearest_place(layers, "skus", name, *(() if isinstance(at, Requirement) else at))
        where = at.where if isinstance(at, Requirement) else place.where
        problems.append(ThresholdsError(where, f"{dotted(place.at)}: {sentence}", "", what_next(file.path)))
    if problems:
        raise first_of(problems)
    return file


def _nonsense(
    file: ThresholdsFile, broken: Collection[str]
) -> Iterator[tuple[str, tuple[str | int, ...] | Requirement, str]]:
    """What is wrong though each file is well-formed: the SKU, a place below it or a requirement, and a sentence."""
    skus = file.thresholds.skus
    yield from odd_names(skus)
    for name, sku in skus.items():
        yield from ((name, *contradiction) for contradiction in contradictions(sku))
        below = (below.thresholds.skus.get(name) for below in file.all_below)
        weakened = [problem for before in below if before is not None for problem in why_more_than_changed(before, sku)]
        yield from ((name, *contradiction) for contradiction in dict.fromkeys(weakened))
        ratios = [
            requirement
            for requirement in sku.requirements
            if requirement.versus is not None and requirement.versus not in broken
        ]
        yield from ((name, ratio, why) for ratio in ratios if (why := why_incomparable(skus, name, ratio)))
