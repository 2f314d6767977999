"""One acceptance session: opened, planned, measured or read, judged, remembered."""
