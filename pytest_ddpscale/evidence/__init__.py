"""What a run directory offers to the judge, read and refused where it contradicts itself."""
