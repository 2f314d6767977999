"""To be put on PYTHONPATH: Python imports this folder's sitecustomize as it starts."""
