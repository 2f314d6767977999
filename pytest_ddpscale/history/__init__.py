"""Values of a site's nodes in earlier runs, in one SQLite file, and whether the nodes still reach them."""
