"""Tables 12.1 to 12.7 of Jordi Torres, "Supercomputing for AI", chapter 12: ViT on MareNostrum 5, H100 64 GB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Measured: complete training time in s, throughput in img/s (tables 12.1 and 12.5). Computed by the chapter: efficiency
# in % (12.2, 12.6), img/s more than the row above and gain in % (12.3, 12.7), s saved, and in % (12.4), and % saved of
# one GPU. Of the times of tiny-224 the chapter prints two reductions, in its text.
DATA_SETS: Mapping[str, Mapping[int, tuple[Any, ...]]] = {
    "micro-224": {
        1: (556, 240, 100.0),
        2: (439, 464, 96.7, 224, 93, 117, 21, 21),
        4: (380, 892, 92.9, 428, 92, 59, 13, 32),
        8: (347, 1668, 86.9, 776, 87, 33, 9, 38),
        16: (330, 3075, 80.1, 1407, 84, 17, 5, 41),
        32: (328, 5205, 67.7, 2130, 69, 2, 0.6, 41),
    },
    "tiny-224": {
        1: (2350, 242, 100.0),
        2: (1354, 475, 98.1, 233, 96),
        4: (842, 935, 96.5, 460, 97),
        8: (605, 1817, 93.8, 882, 94),
        16: (457, 3597, 92.9, 1780, 98, 148, 24),
        32: (310, 6914, None, 3317, 92, 147, 32),
    },
}
