"""Workloads with other settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_ddpscale.plan.workload import Workload


def with_settings(workload: Workload, **settings: Any) -> Workload:
    """The workload with these settings, of its own or of its family, such as ``image_size=64``."""
    options = {name: value for name, value in settings.items() if name in vars(workload.family)}
    own = {name: value for name, value in settings.items() if name not in options}
    return replace(workload, family=workload.family.changed(**options), **own)
