"""Two runs beside each other, or a run beside the site's history. Pure but for reading run directories."""
