"""What a site's nodes reached in earlier runs, in one SQLite file, and whether they still reach it."""
