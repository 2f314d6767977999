"""Which software ran, and what of it is another now: that explains a drift before any GPU does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Seen = Mapping[str, tuple[str, ...]]  # versions by name, oldest first, each once


def versions_seen(runs: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Every version of each thing.

    Args:
        runs: versions by name, of each run, oldest first.
    """
    seen: dict[str, dict[str, None]] = {}
    for versions in runs:
        for name, version in versions.items():
            seen.setdefault(name, {})[version] = None
    return {name: tuple(found) for name, found in sorted(seen.items())}


def version_changes(before: Seen, now: Mapping[str, str]) -> tuple[str, ...]:
    """What of the software was another in any earlier run: ``torch 2.14.0 before, 2.15.0 now``.

    Args:
        before: of the earlier runs. What either side does not say is not compared.
        now: of the run in question, by name.
    """
    changes = []
    for name, versions in sorted(before.items()):
        others = [version for version in versions if version != now.get(name, version)]
        if others:
            changes.append(f"{name} {', '.join(others)} before, {now[name]} now")
    return tuple(changes)
