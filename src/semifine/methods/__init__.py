"""Training methods, one file each; the file's name is the method's name."""

from semifine.methods.registry import method_class, method_names

__all__ = ["method_class", "method_names"]
