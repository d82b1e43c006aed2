"""Trained models at work."""
