"""Evidence for the judge, read from a run directory and refused if it contradicts itself."""
