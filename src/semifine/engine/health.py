"""Signs that a run goes wrong, read from the numbers of the log."""

from __future__ import annotations

from collections.abc import Mapping

EARLY = 0.1
"""Share of the steps in which a network that has learnt nothing yet may look ill."""
FEW_CLASSES = 0.2
"""Share of the classes below which predictions count as collapsed; a balanced run has nearly all."""
MUCH_WAITING = 0.5
"""Share of the time that making batches may take before it is worth a word."""


def find_warnings(step: int, total: int, num_classes: int, numbers: Mapping[str, float], skipped: int) -> list[str]:
    """One sentence for each thing that is wrong now; empty when all is well."""
    found = []
    settled = step >= EARLY * total
    spread = numbers.get("predicted_classes")
    if settled and spread is not None and spread < max(1.5, FEW_CLASSES * num_classes) and num_classes > 2:
        found.append(f"predictions collapse: only about {spread:.0f} of {num_classes} classes are predicted.")
    if settled and numbers.get("accepted") == 0:
        found.append("no pseudo-label passes the threshold: unlabelled images teach nothing.")
    if skipped:
        found.append(f"the loss was not finite in {skipped} steps, which were skipped.")
    waiting = numbers.get("data_wait", 0.0)
    if waiting > MUCH_WAITING:
        found.append(f"{100 * waiting:.0f} % of the time goes into making batches.")
    return found
