"""Synthetic folders of images to train on, for sites without a data set they may use."""
