"""What runs on every node beside its ranks: starts torchrun, watches the ranks, ends them, tells the supervisor."""
