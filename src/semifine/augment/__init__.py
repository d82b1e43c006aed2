"""Batched augmentation: random per sample, the same views on CPU and GPU."""
