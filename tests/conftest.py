"""What all of the project's own tests share."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys

import pytest
from hypothesis import settings

from pytest_ddpscale.thresholds import loading
from pytest_ddpscale.thresholds.validating import read_layer
from pytest_ddpscale.util.packaged import THRESHOLDS, packaged

# Without byte code each process that a test starts compiles the whole package anew, which takes a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collecting makes hundreds of thousands of objects that stay: looking through them again and again for garbage takes
# a third of its time, and each full look while tests run a second.
gc.disable()
atexit.register(gc.unfreeze)

# Examples are compared by what they compute, not by how long a busy machine takes over them; each run tries others.
settings.register_profile("ddpscale", deadline=None, max_examples=40)
settings.load_profile("ddpscale")

# Hundreds of commands read and compile the packaged thresholds, which takes a third of a second.
_packaged = functools.cache(read_layer)
vars(loading).update(
    read_layer=lambda path, *by: _packaged(path) if path == packaged(THRESHOLDS) else read_layer(path, *by),
    _compiled=functools.lru_cache(8)(loading._compiled),
)

pytest_plugins = ["pytester", "tests.slurm_lab.fixtures", "tests.side_by_side", "tests.lab_mark"]


def pytest_configure(config: pytest.Config) -> None:
    """Let no test warn; pyproject.toml is also the product's configuration, whose users have others' warnings."""
    config.getini("filterwarnings").insert(0, "error")  # first, so that any other filter is stronger
    # Before 3.10.7 matplotlib uses names that a newer pyparsing calls deprecated.
    config.addinivalue_line("filterwarnings", r"ignore:'\w+' deprecated - use:DeprecationWarning")
    # torch 2.9 only: of its two ways to set the precision of fp32 both are used, see worker/training.py
    config.addinivalue_line("filterwarnings", "ignore:Please use the new API settings to control TF32:UserWarning")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Have the garbage collector look where nothing is collected, which workers do."""
    if session.config.pluginmanager.hasplugin("dsession"):
        gc.enable()


def pytest_collection_finish() -> None:
    """Have the garbage collector look at what tests leave, and at nothing that was there before."""
    gc.freeze()
    gc.enable()
