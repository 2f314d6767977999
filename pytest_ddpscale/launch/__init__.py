"""Starts and watches ranks from the pytest process, which never imports torch."""
