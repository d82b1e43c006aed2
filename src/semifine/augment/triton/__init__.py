"""Triton kernels of the augmentation pipeline."""
