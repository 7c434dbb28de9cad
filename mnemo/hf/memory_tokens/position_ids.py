"""Where the rows of a segment stand: position policies.

continue   positions run on through read block, tokens and write block
tokens     tokens stand where they would without memory; the read block shares position 0, the write block follows
fixed      read block at 0, write block behind it, then the tokens: memory never moves, however long a segment is
"""

from __future__ import annotations

import torch
from torch import Tensor


def place(policy: str, index: Tensor, num: int, write: bool, counts: Tensor) -> Tensor | None:
    """Positions (B, N) of rows `index` (N,) of segments that have `counts` (B,) tokens between their memory blocks.

    None where the backbone's own counting is right.
    """
    if policy == "continue" or num == 0:
        return None
    token = index - num
    behind = token - counts[:, None]  # >= 0 in the write block and in the padding behind it
    in_write = (behind >= 0) & (behind < num) & write
    padded = behind >= (num if write else 0)
    if policy == "tokens":
        places = torch.where(token < 0, 0, token).expand_as(behind)
        return torch.where(padded, counts[:, None], places)
    tokens_from = num * (1 + write)
    places = torch.where(token < 0, index, token + tokens_from).expand_as(behind)
    return torch.where(in_write, behind + num, torch.where(padded, 0, places))


def positions_needed(policy: str, segment: int, num: int, write: bool) -> int:
    """How many positions a full segment uses."""
    if policy == "tokens":
        return segment + (num if write else 0)
    return segment + num * (1 + write)
