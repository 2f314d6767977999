"""A site's own bounds, from runs of nodes that it trusts: `ddpscale calibrate`."""
