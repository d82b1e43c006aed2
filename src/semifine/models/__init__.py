"""Backbones, heads and the loading of weights."""
