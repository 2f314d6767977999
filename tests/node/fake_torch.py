"""Packages called torch that can be imported in no time: what the survey finds out of them is known."""

from __future__ import annotations

from pathlib import Path

CPU_BUILD = """
__version__ = "2.8.0+cpu"
class version:
    cuda = None
class _C:
    pass
class cuda:
    @staticmethod
    def get_arch_list():
        return []
"""
CUDA_BUILD = """
__version__ = "2.8.0+cu128"
class version:
    cuda = "12.8"
class _C:
    @staticmethod
    def _cuda_getArchFlags():
        return "sm_80 sm_90 compute_120"
    @staticmethod
    def _cuda_getDeviceCount():
        return 8
class cuda:
    class nccl:
        @staticmethod
        def version():
            return 2, 27, 3
"""


def write_torch(folder: Path, source: str) -> Path:
    """Put a package torch into `folder`, and return that, for PYTHONPATH."""
    (folder / "torch.py").write_text(source, encoding="utf-8")
    return folder
