"""Images that a network can learn to classify: each class has its own waves, each image its own noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
_WAVES = 3
_NOISE = 40  # of 255: no two images are identical, and no single pixel reveals the class
_SHIFT = 8  # pixels: no pixel position reveals the class


def class_pattern(label: int, image_size: int, seed: int) -> Pixels:
    """The pattern shared by images of a class: waves of random direction, length and colour, (size, size, 3)."""
    chance = np.random.default_rng((seed, label))
    down, right = np.mgrid[:image_size, :image_size] / image_size
    pattern = np.full((image_size, image_size, 3), 127.5)
    for _ in range(_WAVES):
        angle, phase = chance.uniform(0, 2 * np.pi, 2)
        length = chance.uniform(2, 12)  # waves over the image
        wave = np.sin(2 * np.pi * length * (right * np.cos(angle) + down * np.sin(angle)) + phase)
        pattern += wave[..., np.newaxis] * chance.uniform(-40, 40, 3)
    pixels: Pixels = pattern.clip(0, 255).astype(np.uint8)
    return pixels


def image_of(pattern: Pixels, chance: np.random.Generator) -> Pixels:
    """One image of a class: its pattern, shifted by a few pixels, plus noise, (size, size, 3)."""
    down, right = chance.integers(-_SHIFT, _SHIFT + 1, 2)
    moved = np.roll(pattern, (down, right), (0, 1)).astype(np.int16)
    noise = chance.integers(-_NOISE, _NOISE + 1, pattern.shape, np.int16)
    pixels: Pixels = np.clip(moved + noise, 0, 255).astype(np.uint8)
    return pixels
