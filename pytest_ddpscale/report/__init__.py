"""One pure renderer per format, from a judgement to text or files. Importing this package imports no library."""
