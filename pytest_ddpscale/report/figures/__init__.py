"""Figures of reports: each is described once and drawn once, for the page as SVG and beside it as PNG."""
