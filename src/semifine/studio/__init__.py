"""The labeling studio: a page on this machine, on which people settle what the model is unsure of."""
