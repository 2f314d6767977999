"""The agent that runs on every node: starts torchrun, watches and ends the ranks, and reports to the supervisor."""
