"""Random numbers that are a pure function of a seed and a counter.

Draw k of a seed is the same whatever was drawn before and whatever else runs, so that a session that is continued,
forked, replayed after a crash or computed in a batch gets the same numbers.
"""

from __future__ import annotations

import hashlib
import struct

LARGEST_SEED = 2**62
BITS = 53
"""Bits of a float64's fraction."""


def uniform_draw(seed: int, index: int) -> float:
    """Number `index` (from 0) of a seed, uniform in [0, 1)."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed, index), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - BITS)) * 2.0**-BITS
