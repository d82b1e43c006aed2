"""Training methods. Each file defines the method of the same name."""

from semifine.methods.registry import method_class, method_names

__all__ = ["method_class", "method_names"]
