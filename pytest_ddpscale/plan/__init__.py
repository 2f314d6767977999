"""The measurement plan: workloads, studies, arms, and the metrics that need them. Standard library and numpy only."""
