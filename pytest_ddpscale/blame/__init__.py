"""Who is to blame: a rank, a GPU, a node or a link between nodes. Pure functions."""
