"""A site's own numbers, from runs of nodes that it trusts: `ddpscale calibrate`."""
