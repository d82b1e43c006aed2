"""Classifier, forward passes, EMA and pretrained weights."""
