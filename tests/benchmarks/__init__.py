"""The benchmarks are scripts, no package: found as `python benchmarks/NAME.py` finds them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def benchmark(name: str) -> Any:
    """The module ``benchmarks/NAME.py``."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))
