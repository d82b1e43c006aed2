"""The labeling studio: a local web page for labeling the images that a model is uncertain about."""
