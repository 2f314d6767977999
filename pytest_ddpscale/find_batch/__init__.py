"""The largest per-GPU batch that trains as a study trains, within the memory that there is."""
