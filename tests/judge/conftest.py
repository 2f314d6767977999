from __future__ import annotations

from tests.nvml_stand_in.fixtures import machine, nvml_library_directory

__all__ = ["machine", "nvml_library_directory"]
