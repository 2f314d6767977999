"""A real Slurm cluster on one machine, for the project's tests: see :class:`tests.slurm_lab.lab.SlurmLab`.

A test asks for the fixture ``lab`` and gets six nodes, ``n1`` … ``n6``, all idle and healthy. Needs root, Debian's
packages ``slurm-wlm slurmctld slurmd munge iproute2 nftables``, and a cgroup v1 ``cpu`` controller; touches no other
Slurm.
"""

from __future__ import annotations
