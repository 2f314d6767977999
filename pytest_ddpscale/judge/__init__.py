"""From measurements to verdicts: values by round, intervals, bounds, caveats, and who is at fault."""
