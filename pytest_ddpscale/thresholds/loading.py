"""Loads a thresholds file with those it extends: the valid SKUs, and the errors of the others."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_ddpscale.errors import SkuError, ThresholdsError
from pytest_ddpscale.thresholds.compiling import Compiler
from pytest_ddpscale.thresholds.consistency import (
    clashing_names,
    contradictions,
    remarks,
    why_incomparable,
    why_more_than_changed,
)
from pytest_ddpscale.thresholds.form import MOST_SKUS, SCHEMA_VERSION, FileForm
from pytest_ddpscale.thresholds.model import Requirement, Sku, Thresholds
from pytest_ddpscale.thresholds.reading import Layer, dotted, has, placed, read_layer, shown, what_next
from pytest_ddpscale.thresholds.validating import PartError
from pytest_ddpscale.util.nearest import did_you_mean
from pytest_ddpscale.util.packaged import THRESHOLDS, packaged

DEEPEST_EXTENSION = 4
_NUMBER = re.compile("[a-z]*[0-9]+[a-z]*")  # with the letters around it, which tell a B200 from a GB200
_LIKENESS = 0.75  # `a100-40gb` suggests `a100-sxm4-40gb`; `gpu` does not suggest `cpu`
_OF_ANOTHER_GPU = "Another GPU needs a section of its own: docs/how-to/sku.md has one."
PACKAGED = "packaged"  # what `extends` calls the packaged file


@dataclass(frozen=True)
class ThresholdsFile:
    """A thresholds file.

    Attributes:
        layers: the files it extends, then itself.
        thresholds: its valid SKUs.
        broken: errors of the other SKUs, by name.
        unused: errors of entries that no SKU may need.
        warnings: rows of valid SKUs that are skipped, by SKU.
        remarks: rows of valid SKUs that are odd, and may be meant, by SKU.
        below: the file that it extends; None if it extends none with SKUs.
    """

    layers: tuple[Layer, ...]
    thresholds: Thresholds
    broken: Mapping[str, tuple[ThresholdsError, ...]]
    unused: tuple[ThresholdsError, ...] = ()
    warnings: Mapping[str, tuple[ThresholdsError, ...]] = field(default_factory=dict)
    remarks: Mapping[str, tuple[ThresholdsError, ...]] = field(default_factory=dict)
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
        return self.layers[0].sha256 == hashlib.sha256(packaged(THRESHOLDS).read_bytes()).hexdigest()

    @property
    def all_below(self) -> Iterator[ThresholdsFile]:
        """Every file with SKUs that it extends, directly or not, the nearest first."""
        if self.below is not None:
            yield self.below
            yield from self.below.all_below

    @property
    def problems(self) -> tuple[ThresholdsError, ...]:
        """All errors, each once."""
        found = (*self.unused, *(one for wrong in self.broken.values() for one in wrong))
        return tuple({str(one): one for one in found}.values())

    def where(self, *at: str | int) -> str:
        """``file:line`` of an entry in the nearest file that has it, or of the closest entry above it."""
        layer = next((one for one in reversed(self.layers) if has(one.data, at)), self.layers[-1])
        return placed(layer.data, at, layer.mark).where

    def sku_name(self, asked: str, where: str = "--gpu-sku") -> str:
        """The canonical name of the requested SKU.

        Args:
            asked: a name or alias, in any case.
            where: the option or file that names it, for the message.

        Raises:
            SkuError: unknown SKU; the message has the nearest names.
            ThresholdsError: its section is not valid.
        """
        name = self.thresholds.canonical_name(asked)
        is_broken_itself = asked.casefold() in map(str.casefold, self.broken)  # even if it is an alias of another SKU
        if name is not None and not is_broken_itself:
            return name
        wrong = next((found for sku, found in self.broken.items() if asked.casefold() in self._names_of(sku)), None)
        if wrong is not None:
            raise first_of(wrong)
        known = [*self.thresholds.skus, *(a for sku in self.thresholds.skus.values() for a in sku.aliases)]
        near, number = nearest_names(asked, known), len(self.thresholds.skus)
        such = f", such as {', '.join(near)}" if near else ""
        expected = f"one of its {number} SKUs{such} (`ddpscale thresholds show` lists them)"
        raise SkuError(where, f"{self.path} has no SKU {asked!r}", expected, _OF_ANOTHER_GPU)

    def _names_of(self, sku: str) -> set[str]:
        """The name and aliases of a SKU, valid or not, in lower case."""
        sections = [layer.section("skus").get(sku) for layer in self.layers]
        aliases = [one.get("aliases") for one in sections if isinstance(one, dict)]
        named = [one for found in aliases if isinstance(found, list) for one in found if isinstance(one, str)]
        return {one.casefold() for one in (sku, *named)}


def nearest_names(asked: str, known: Sequence[str]) -> list[str]:
    """Up to three similar names that have all numbers of the requested one: h100 and gh200 do not suggest h200."""
    folded = asked.strip().casefold()
    numbers = set(_NUMBER.findall(folded))
    of_same = {name.casefold(): name for name in known if numbers <= set(_NUMBER.findall(name.casefold()))}
    return [of_same[one] for one in difflib.get_close_matches(folded, list(of_same), n=3, cutoff=_LIKENESS)]


def first_of(problems: Sequence[ThresholdsError]) -> ThresholdsError:
    """The first of several problems, with the number of others."""
    first, more = problems[0], len(problems) - 1
    if not more:
        return first
    return ThresholdsError(first.where, f"{first.found} ({more} more like this)", first.expected, first.action)


def load_thresholds(path: Path) -> ThresholdsFile:
    """Read a thresholds file and those that it extends.

    Invalid SKUs are listed under `broken` instead of `thresholds`, so that the other SKUs can be judged.

    Raises:
        ThresholdsError: it cannot be read, is not YAML, or has no SKUs. The message has file:line, what was found, what
            was expected and what to do.
    """
    return _compiled(_layers(path))


def _layers(path: Path) -> tuple[Layer, ...]:
    """The files that a file extends, then itself."""
    layers = [read_layer(path)]
    _check_top(layers[0])
    while "extends" in layers[0].data:
        target, mark = layers[0].data["extends"], layers[0].data.marks["extends"]
        if len(layers) > DEEPEST_EXTENSION:
            found = f"more than {DEEPEST_EXTENSION} files that extend each other"
            raise ThresholdsError(mark.where, found, "fewer", what_next(path))
        if not isinstance(target, str) or not target.strip():
            found = f"extends is {shown(target)}"
            raise ThresholdsError(mark.where, found, "`packaged` or a path", what_next(mark.path))
        below = read_layer(packaged(THRESHOLDS) if target == PACKAGED else mark.path.parent / target, mark)
        if any(below.path.samefile(layer.path) for layer in layers):
            found = f"extends {shown(target)}, which extends this file"
            raise ThresholdsError(mark.where, found, "no circle", what_next(path))
        layers.insert(0, below)
        _check_top(below)
    return tuple(layers)


def _check_top(layer: Layer) -> None:
    """Refuse errors that affect all SKUs: another form, an unknown key, a duplicate key."""
    for at, error in layer.odd:
        if len(at) <= 1:
            raise error
    version = layer.data.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        found = "schema_version is missing" if version is None else f"schema_version is {shown(version)}"
        raise ThresholdsError(
            placed(layer.data, ("schema_version",), layer.mark).where, found, f"{SCHEMA_VERSION}",
            f"Use the current form, for example from `ddpscale init`. {what_next(layer.path)}",
        )  # fmt: skip
    for key, mark in layer.data.marks.items():
        if key not in FileForm.model_fields:
            near = did_you_mean(str(key), FileForm.model_fields)
            raise ThresholdsError(mark.where, f"unknown key {key}{near}", "", f"Correct it. {what_next(layer.path)}")


def _compiled(layers: tuple[Layer, ...]) -> ThresholdsFile:
    path = layers[-1].path
    compiler = Compiler(layers)
    wanted = list(dict.fromkeys(name for layer in layers for name in layer.section("skus")))
    if not wanted or len(wanted) > MOST_SKUS:
        where = placed(layers[-1].data, ("skus",), layers[-1].mark).where
        raise ThresholdsError(where, f"{len(wanted)} SKUs under `skus`", f"1 to {MOST_SKUS}", what_next(path))
    broken: dict[str, tuple[ThresholdsError, ...]] = {}
    skus: dict[str, Sku] = {}
    for name in wanted:
        try:
            skus[name] = compiler.sku(name)
        except PartError as error:
            broken[name] = error.problems
    below = _compiled(layers[:-1]) if any(layer.section("skus") for layer in layers[:-1]) else None
    file = ThresholdsFile(layers, Thresholds(skus), broken, tuple(compiler.problems()), below=below)
    for name, twin in _differing_in_case(wanted).items():
        found = f"skus.{name}: differs from {twin} only in case"
        place = next(file.where("skus", one) for layer in reversed(layers) for one in (name, twin)
                     if one in layer.section("skus"))  # fmt: skip
        broken[name] = (ThresholdsError(place, found, "one of them", f"Rename one. {what_next(path)}"),)
        skus.pop(name, None)
    for name in broken:
        owner = next((sku for sku, entry in skus.items() if name in entry.aliases), None)
        if owner is not None:
            found = f"skus.{name}: {name} is an alias of {owner}"
            broken[name] = (ThresholdsError(file.where("skus", name), found, f"`{owner}:`", "Write that name."),)
    return _without_contradictions(file)


def _differing_in_case(names: Sequence[str]) -> dict[str, str]:
    """Names that differ from another only in case, with that other name; --gpu-sku ignores case."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.casefold(), []).append(name)
    return {one: next(other for other in same if other != one) for same in found.values() if same[1:] for one in same}


def _without_contradictions(file: ThresholdsFile) -> ThresholdsFile:
    """The file with contradictory SKUs moved to the broken ones."""
    found: dict[str, list[ThresholdsError]] = {}
    skus = file.thresholds.skus
    for name, sku in skus.items():
        found[name] = [_problem(file, name, at, sentence) for at, sentence in contradictions(name, sku)]
        below = (one.thresholds.skus.get(name) for one in file.all_below)
        weakened = [one for before in below if before is not None for one in why_more_than_changed(before, sku)]
        found[name] += [_problem(file, name, at, sentence) for at, sentence in dict.fromkeys(weakened)]
    for name, alias, sentence in clashing_names(skus):
        found[name].append(_problem(file, name, ("aliases", alias), sentence))
    sound = {name: sku for name, sku in skus.items() if not found[name]}
    for name, sku in sound.items():
        reasons = ((one, why_incomparable(sound, name, one)) for one in sku.requirements)
        found[name] += [_problem(file, name, one, reason) for one, reason in reasons if reason]
    broken = {**file.broken, **{name: tuple(wrong) for name, wrong in found.items() if wrong}}
    return _with_references(replace(file, broken=broken))


def _with_references(file: ThresholdsFile) -> ThresholdsFile:
    """The file with ratios to invalid SKUs marked as missing, ratios to removed SKUs skipped, and remarks."""
    skus = {name: sku for name, sku in file.thresholds.skus.items() if name not in file.broken}
    warnings: dict[str, tuple[ThresholdsError, ...]] = {}
    told: dict[str, tuple[ThresholdsError, ...]] = {}
    for name, sku in skus.items():
        kept: list[Requirement] = []
        for one in sku.requirements:
            if one.versus is None or one.versus in skus:
                kept.append(one)
            elif one.versus in file.broken:
                why = f"its reference {one.versus} is not valid: {file.broken[one.versus][0].where}"
                kept.append(replace(one, missing=why))
            else:
                near = did_you_mean(one.versus, skus)
                found = f"{one} is skipped for {name}: its reference {one.versus} is not in this file{near}"
                warning = ThresholdsError(one.where, found, "", "Add that SKU, or remove the row.")
                warnings[name] = (*warnings.get(name, ()), warning)
        skus[name] = replace(sku, requirements=tuple(kept))
        told[name] = tuple(ThresholdsError(one.where, sentence) for one, sentence in remarks(skus[name]))
    found_odd = {name: odd for name, odd in told.items() if odd}
    return replace(file, thresholds=Thresholds(skus), warnings=warnings, remarks=found_odd)


def _problem(file: ThresholdsFile, sku: str, at: tuple[str | int, ...] | Requirement, sentence: str) -> ThresholdsError:
    path = ("skus", sku, *(() if isinstance(at, Requirement) else at))
    where = at.where if isinstance(at, Requirement) else file.where(*path)
    return ThresholdsError(where, f"{dotted(path)}: {sentence}", "", what_next(file.path))
