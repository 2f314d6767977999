"""pytest-ddpscale: decides whether a GPU cluster is fit to open."""

__version__ = "0.1.0"
