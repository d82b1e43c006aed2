"""From files to batches: catalog, image store, index streams.

Nothing is imported here, so that reading a dataset's lists needs numpy and Pillow but not torch.
"""
