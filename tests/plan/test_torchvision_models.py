"""The packaged list of models against torchvision's own."""

from __future__ import annotations

from pytest_ddpscale.plan.torchvision_models import TORCHVISION_MODELS


def test_the_packaged_list_is_torchvisions() -> None:
    import torchvision.models

    assert set(torchvision.models.list_models(module=torchvision.models)) == TORCHVISION_MODELS
