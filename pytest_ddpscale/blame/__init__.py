"""Find culprits: ranks, GPUs, nodes or links between nodes. Pure functions."""
