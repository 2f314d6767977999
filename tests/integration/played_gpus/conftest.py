"""The stand-in for NVML, compiled once for all tests here."""

from tests.nvml_stand_in.fixtures import nvml_library_directory

__all__ = ["nvml_library_directory"]
