"""Independent seeds from one: order, augmentation, weights and medoids do not share a stream of numbers."""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose; the same on every machine and in every process."""
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
