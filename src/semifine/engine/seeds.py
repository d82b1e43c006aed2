"""Independent seeds from one: order, augmentation, weights and medoids do not share a stream of numbers."""

from __future__ import annotations

from hashlib import blake2b

from semifine.config import TrainSettings


def derive_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose; the same on every machine and in every process."""
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_for(purpose: str, settings: TrainSettings, part: str = "") -> int:
    """The seed of weights, order, views or method: its own where the settings give one, else from the common seed."""
    own: int | None = getattr(settings, f"seed_{purpose}")
    return derive_seed(settings.seed if own is None else own, f"{part} {purpose}".strip())
