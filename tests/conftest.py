"""What all of the project's own tests share."""

from __future__ import annotations

import os
import sys

from hypothesis import settings

# Without byte code each process that a test starts compiles the whole package anew, which takes a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Examples are compared by what they compute, not by how long a busy machine takes over them; each run tries others.
settings.register_profile("ddpscale", deadline=None, max_examples=40)
settings.load_profile("ddpscale")

pytest_plugins = ["pytester", "tests.slurm_lab.fixtures", "tests.side_by_side"]
