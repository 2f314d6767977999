"""What a family of models is: its options, what its samples are called, and how its models are built and fed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

if TYPE_CHECKING:
    import torch
    from torch import nn

F = TypeVar("F", bound="Family")


def option(default: Any, description: str, most: int | None = None) -> Any:
    """An option that thresholds.yaml may set; with `most` a whole number from 1 up to it."""
    return field(default=default, metadata={"description": description, "most": most})


class Family(ABC):
    """Options of a model, and everything that only its family knows; each family is a frozen dataclass.

    Thresholds and plans read the options, so no module of a family imports torch; the methods that train do so inside.

    Attributes:
        kind: the family's name in plan.json.
        model: one of `models`.
        unit: of samples, as in ``img/s``.
        samples: plural of a sample.
        models: names of all its models; no other family has one of them.
        models_are: what these are, for errors.
        size_option: the option that is a sample's size.
        of_kernels: options beside the model that decide which kernels run for a sample.
        settings_order: names of settings in the order of digests; others follow.
        reads_folders: whether its samples can be read from a folder.
        cudnn_benchmark: whether cuDNN may time its algorithms and choose the fastest.
    """

    unit: ClassVar[str]
    samples: ClassVar[str]
    models: ClassVar[frozenset[str]]
    models_are: ClassVar[str]
    size_option: ClassVar[str]
    of_kernels: ClassVar[tuple[str, ...]] = ()
    settings_order: ClassVar[tuple[str, ...]] = ()
    reads_folders: ClassVar[bool] = False
    kind: str
    model: str
    cudnn_benchmark: bool = False
    if TYPE_CHECKING:  # whoever reads an option that only some families have knows which family it is

        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        refuse_beyond(
            self, {option.name: option.metadata["most"] for option in self.options() if option.metadata["most"]}
        )

    @classmethod
    def options(cls) -> list[Field[Any]]:
        """The options that thresholds.yaml may set, beside the model."""
        return [option for option in fields(cast(Any, cls)) if "most" in option.metadata]

    def changed(self: F, **options: Any) -> F:
        """The family with other values of some options."""
        return cast(F, replace(cast(Any, self), **options))

    @classmethod
    def usual(cls: type[F], model: str, *, is_cpu: bool, **options: Any) -> F:
        """A model with the options in which it is fastest on a device."""
        return cast(Any, cls)(model, **options)  # type: ignore[no-any-return]

    def sized(self: F, size: int | None) -> F:
        """With samples of another size, if any."""
        return self if size is None else self.changed(**{self.size_option: size})

    @property
    def form(self) -> str:
        """What a sample is like, for headings: ``224 px, channels_last``."""
        return ""

    @property
    def trains_all(self) -> bool:
        """Whether the whole model is trained."""
        return True

    @property
    def trained(self) -> str:
        """A description of what is trained."""
        return self.model

    @property
    def flops_per_sample(self) -> float | None:
        """FLOPs of a training step per sample, roughly; None if they are not known before torch counts them."""
        return None

    @property
    def learning_rate(self) -> float:
        """Small enough to keep losses finite with random targets; it does not change step times."""
        return 1e-3

    @abstractmethod
    def build(self, device: torch.device, seed: int) -> nn.Module:
        """The untrained model on a device; the same weights on every rank of one SKU."""

    @abstractmethod
    def batch(self, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of a number of samples, not filled yet; the device may be ``meta``."""

    @abstractmethod
    def fill(self, inputs: torch.Tensor, targets: torch.Tensor, generator: torch.Generator) -> None:
        """Draw random samples, in place."""

    @abstractmethod
    def loss(self, model: Callable[[torch.Tensor], Any], inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of a forward pass."""

    def flops(self) -> Mapping[Any, Callable[..., int]]:
        """Operations of torch's functions, where torch's own FlopCounterMode counts wrongly."""
        return {}

    def laid_out(self, model: nn.Module) -> nn.Module:
        """The model with its weights in the family's memory format, before DDP builds its buckets by their strides."""
        return model

    def frozen(self, model: nn.Module) -> nn.Module | None:
        """The part of a built model that is never trained and has no statistics of batch normalisation yet."""
        return None

    def finisher(self, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
        """What makes inputs of samples that were loaded and are on the device."""
        return lambda read: read


def refuse_beyond(thing: object, most: Mapping[str, int]) -> None:
    """Raise ValueError if one of the named attributes is below 1 or above its limit; None is neither."""
    for name, largest in most.items():
        number = getattr(thing, name)
        if number is not None and not 1 <= number <= largest:
            expected = "at least 1" if number < 1 else f"at most {largest}"
            raise ValueError(f"{name} is {number}; expected {expected}")
