"""From files to batches: catalog, image store, samplers.

This file imports nothing, so reading the lists of a data set requires NumPy and Pillow but not PyTorch.
"""
