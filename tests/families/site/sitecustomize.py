"""A family of one file: models that predict the next character of random texts; with this folder on PYTHONPATH
sessions, agents and ranks have it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pytest_ddpscale.families import FAMILIES
from pytest_ddpscale.families.family import Family, option

if TYPE_CHECKING:
    import torch
    from torch import nn

CHARACTERS = 64


@dataclass(frozen=True)
class Characters(Family):
    """Texts of `context` characters."""

    model: str
    context: int = option(8, "Characters of a text.", 1024)
    kind: Literal["characters"] = "characters"

    unit: ClassVar[str] = "text"
    samples: ClassVar[str] = "texts"
    models: ClassVar[frozenset[str]] = frozenset({"bigram"})
    models_are: ClassVar[str] = "bigram"
    size_option: ClassVar[str] = "context"
    of_kernels: ClassVar[tuple[str, ...]] = ("context",)

    @property
    def form(self) -> str:
        """As ``8 characters``."""
        return f"{self.context} characters"

    def build(self, device: torch.device, seed: int) -> nn.Module:
        """Of each character a vector, and of that the next one's scores."""
        import torch
        from torch import nn

        torch.manual_seed(seed)
        with device:
            return nn.Sequential(nn.Embedding(CHARACTERS, 32), nn.Linear(32, CHARACTERS))

    def batch(self, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Characters and those that follow, int64 (count, context)."""
        import torch

        texts = torch.empty(2, count, self.context, dtype=torch.int64, device=device)
        return texts[0], texts[1]

    def fill(self, inputs: torch.Tensor, targets: torch.Tensor, generator: torch.Generator) -> None:
        """Draw characters."""
        for one in (inputs, targets):
            one.random_(0, CHARACTERS, generator=generator)

    def loss(self, model: Callable[[torch.Tensor], Any], inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy."""
        from torch.nn import functional

        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


FAMILIES["characters"] = Characters
