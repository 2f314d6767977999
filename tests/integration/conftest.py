from __future__ import annotations

from tests.integration.gpu_run import gpu, gpu_run, sku

__all__ = ["gpu", "gpu_run", "sku"]
