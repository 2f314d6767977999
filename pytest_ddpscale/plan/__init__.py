"""What is to be measured: workloads, studies, arms, and the metrics that need them. Stdlib only."""
