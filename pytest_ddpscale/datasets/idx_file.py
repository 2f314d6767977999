"""MNIST's idx files: a header with the shape, then one byte per value (yann.lecun.com/exdb/mnist)."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from pytest_ddpscale.util.regular_file import open_regular, refuse_irregular

_BYTES = 0x08  # unsigned byte, the only value type in MNIST
# Images, labels.
TRAIN_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
VALIDATION_FILES = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_path(folder: Path, name: str) -> Path:
    """Path of the file or of its gzip. Raises FileNotFoundError."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(2, f"expected {name} or {name}.gz", str(folder))


def idx_shape(path: Path) -> tuple[int, ...]:
    """Shape from the header. Raises OSError, or ValueError if it is not an idx file."""
    with _opened(path) as file:
        return _shape(file, path)


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """All values, in the shape given by the header. Raises as `idx_shape`, and ValueError if values are missing."""
    with _opened(path) as file:
        shape = _shape(file, path)
        data = file.read()
    if len(data) != math.prod(shape):
        raise ValueError(f"{path} has {len(data)} values; expected {math.prod(shape)} by its header")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _opened(path: Path) -> IO[bytes]:
    if path.suffix != ".gz":
        return open_regular(path)
    refuse_irregular(path)
    return cast("IO[bytes]", gzip.open(path))  # closes the file that it opens itself, and no other


def _shape(file: IO[bytes], path: Path) -> tuple[int, ...]:
    head = file.read(4)
    if len(head) < 4 or head[:3] != bytes((0, 0, _BYTES)):
        raise ValueError(f"{path} is not an idx file of bytes: it begins with {head.hex() or 'nothing'}")
    sizes = file.read(4 * head[3])
    if len(sizes) != 4 * head[3]:
        raise ValueError(f"{path} is truncated within its header")
    return struct.unpack(f">{head[3]}I", sizes)
