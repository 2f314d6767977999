"""What all of the project's own tests share."""

from __future__ import annotations

from hypothesis import settings

# Examples are compared by what they compute, not by how long a busy machine takes over them.
settings.register_profile("ddpscale", deadline=None)
settings.load_profile("ddpscale")

pytest_plugins = ["pytester", "tests.slurm_lab.fixtures", "tests.side_by_side"]
