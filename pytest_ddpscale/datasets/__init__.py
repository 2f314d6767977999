"""Folders of images to train on, where a site has none that it may use."""
