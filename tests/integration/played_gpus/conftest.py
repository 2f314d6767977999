"""The stand-ins for NVML and for CUDA, compiled once for all tests here."""

from tests.nvml_stand_in.fixtures import nvml_library_directory
from tests.played_cuda.fixtures import played_libraries

__all__ = ["nvml_library_directory", "played_libraries"]
