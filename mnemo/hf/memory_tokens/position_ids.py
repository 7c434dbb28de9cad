"""Position ids of the rows of a segment: position policies.

continue   positions count through read block, tokens and write block
tokens     tokens have the same positions as without memory; the read block has position 0, the write block follows
fixed      read block first, then write block, then tokens: positions of memory do not depend on the segment length
"""

from __future__ import annotations

import torch
from torch import Tensor


def position_ids(policy: str, index: Tensor, num_read: int, num_written: int, counts: Tensor) -> Tensor | None:
    """Return position ids (B, N) of the rows `index` (N,) of segments.

    `num_read`, `num_written`: memory tokens of the two blocks. `counts` (B,): tokens between the memory blocks. None
    means that the backbone's default positions are right.
    """
    if policy == "continue" or num_read + num_written == 0:
        return None
    token = index - num_read
    after = token - counts[:, None]  # >= 0 in the write block and in the padding after it
    in_write = (after >= 0) & (after < num_written)
    padded = after >= num_written
    if policy == "tokens":
        positions = torch.where(token < 0, 0, token).expand_as(after)
        return torch.where(padded, counts[:, None], positions)
    positions = torch.where(token < 0, index, token + num_read + num_written).expand_as(after)
    return torch.where(in_write, after + num_read, torch.where(padded, 0, positions))


def first_token(policy: str, num_read: int, num_written: int) -> int:
    """Return the position of the first token of a segment."""
    return {"continue": num_read, "tokens": 0, "fixed": num_read + num_written}[policy]


def num_positions(policy: str, segment: int, num_read: int, num_written: int) -> int:
    """Return the number of positions that a full segment uses."""
    return segment + num_written + (0 if policy == "tokens" else num_read)
