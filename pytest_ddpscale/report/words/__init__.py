"""The sentences of all that is found."""
