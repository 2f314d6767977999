"""Search for the largest per-GPU batch that trains like a study within the available memory."""
