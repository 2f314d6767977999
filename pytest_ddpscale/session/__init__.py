"""One acceptance session: open, plan, measure or read, judge, and record in the history."""
