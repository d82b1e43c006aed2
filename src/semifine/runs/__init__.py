"""Finished runs: their folder, the reader, and statistics about them."""
