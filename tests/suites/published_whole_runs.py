"""Tables 12.1 to 12.7 of Jordi Torres, "Supercomputing for AI", chapter 12: ViT on MareNostrum 5, H100 64 GB."""

from __future__ import annotations

from typing import NamedTuple


class Derived(NamedTuple):
    """Columns that the chapter computes: of tables 12.2 and 12.6, 12.3 and 12.7, 12.4."""

    efficiency_percent: float | None = None
    marginal_samples_per_s: float | None = None
    gain_percent: float | None = None
    saved_s: float | None = None
    saved_percent: float | None = None
    saved_of_one_percent: float | None = None


# GPUs: complete training time in s, throughput in img/s, memory in GB (tables 12.1 and 12.5).
MICRO = {1: (556, 240, 53), 2: (439, 464, 53), 4: (380, 892, 53), 8: (347, 1668, 53), 16: (330, 3075, 53),
         32: (328, 5205, 53)}  # fmt: skip
TINY = {1: (2350, 242, 53), 2: (1354, 475, 53), 4: (842, 935, 53), 8: (605, 1817, 53), 16: (457, 3597, 53),
        32: (310, 6914, 53)}  # fmt: skip

MICRO_DERIVED = {
    1: Derived(100.0),
    2: Derived(96.7, 224, 93, 117, 21, 21),
    4: Derived(92.9, 428, 92, 59, 13, 32),
    8: Derived(86.9, 776, 87, 33, 9, 38),
    16: Derived(80.1, 1407, 84, 17, 5, 41),
    32: Derived(67.7, 2130, 69, 2, 0.6, 41),
}
# Of the times of tiny-224 the chapter prints two reductions, in its text.
TINY_DERIVED = {
    1: Derived(100.0),
    2: Derived(98.1, 233, 96),
    4: Derived(96.5, 460, 97),
    8: Derived(93.8, 882, 94),
    16: Derived(92.9, 1780, 98, 148, 24),
    32: Derived(None, 3317, 92, 147, 32),
}
IDEAL_SAMPLES_PER_S = {1: 240, 2: 480, 4: 960, 8: 1929, 16: 3840, 32: 7680}
