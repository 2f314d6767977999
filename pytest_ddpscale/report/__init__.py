"""One pure renderer per format: a judgement in, text or files out. Importing this package imports no library."""
