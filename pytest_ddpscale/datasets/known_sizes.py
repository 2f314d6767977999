"""Sizes of the data sets of a published measurement, as far as it gives them.

Jordi Torres, "Supercomputing for AI", chapter 12: a Vision Transformer on up to 32 H100 of MareNostrum 5, 128 images
per GPU, images of 224 pixels. It names its data sets micro-224 and tiny-224 but gives no numbers of images or classes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownSize:
    """How many images a data set has.

    Attributes:
        train, validation: images.
        origin: where these numbers come from, and which are assumed.
    """

    train: int
    validation: int
    classes: int
    image_size: int
    origin: str


KNOWN_SIZES = {
    "micro-224": KnownSize(
        32 * 384, 1_228, 200, 224,
        "32 ranks with 384 images each in 3 batches of 128, from its log; a tenth as many validation images and the "
        "classes of tiny-224 are assumed",
    ),
    "tiny-224": KnownSize(
        100_000, 10_000, 200, 224,
        "Tiny ImageNet's images and classes, assumed from its name; times and throughputs of its table fit 98,300 to "
        "102,300 images and 5 epochs",
    ),
}  # fmt: skip
