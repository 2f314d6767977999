"""Families of models, by the kind that plan.json names; whoever adds one puts it into `FAMILIES`."""

from __future__ import annotations

from typing import Any

import msgspec

from pytest_ddpscale.families.family import Family as Family
from pytest_ddpscale.families.image import ImageFamily

FAMILIES: dict[str, type[Family]] = {"image": ImageFamily}


def family_of(model: object) -> type[Family] | None:
    """The family that has a model of this name; None without one."""
    known = (family for family in FAMILIES.values() if isinstance(model, str) and model in family.models)
    return next(known, None)


def known_models() -> str:
    """What the models of all families are, for errors."""
    return " or ".join(family.models_are for family in FAMILIES.values())


def read_family(wanted: type, data: Any) -> Family:
    """A family of plan.json; msgspec's `dec_hook`, for the one type in a plan that it does not know.

    Raises:
        ValueError: no family has its kind, or its options are not those of the family.
    """
    assert wanted is Family
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in FAMILIES:
        raise ValueError(f"a family of kind {kind!r}; expected one of {', '.join(FAMILIES)}")
    return msgspec.convert(data, FAMILIES[kind])
