"""Features of a pretrained network, and the linear classifier on them (the probe)."""
