"""One acceptance session: what is asked, measured and concluded."""
