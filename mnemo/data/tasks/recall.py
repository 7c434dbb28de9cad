"""A synthetic stream whose answers are in the previous segment."""

from __future__ import annotations

import numpy as np
import torch

from mnemo.data.streams import Batch, Cursor, chance
from mnemo.errors import MnemoError


class RecallStream:
    """Every segment repeats the symbols shown in the previous one, then shows new symbols to remember.

        segment k:      ?  a b c d  !  e f g h
        segment k + 1:  ?  e f g h  !  i j k l

    Only the repeated symbols are scored, so a model without memory cannot be better than chance, log(num_symbols) nats;
    a model with a memory of one segment can be perfect. The first segment of an epoch has no targets. Ids: the symbols
    0 .. num_symbols - 1, then the two marks.
    """

    def __init__(self, batch: int, segment: int, *, num_symbols: int = 8, steps: int = 64, seed: int = 0) -> None:
        if batch < 1 or segment < 4 or segment % 2 or num_symbols < 2 or steps < 2:
            raise MnemoError(
                f"recall needs an even segment of at least 4, 2 symbols, 2 steps and a row: "
                f"not segment {segment}, {num_symbols} symbols, {steps} steps, batch {batch}"
            )
        self._batch, self._half, self._num_symbols = batch, segment // 2, num_symbols
        self._steps, self._seed = steps, seed

    @property
    def vocab_size(self) -> int:
        return self._num_symbols + 2

    def start(self) -> Cursor:
        return {"epoch": 0, "step": 0}

    def read(self, cursor: Cursor) -> tuple[Batch | None, Cursor]:
        epoch, step = cursor["epoch"], cursor["step"]
        if step >= self._steps:
            return None, {"epoch": epoch + 1, "step": 0}
        repeated, shown = self._symbols(epoch, step - 1), self._symbols(epoch, step)
        repeat_mark, show_mark = (np.full((self._batch, 1), self._num_symbols + i) for i in (0, 1))
        tokens = np.concatenate([repeat_mark, repeated, show_mark, shown], axis=1)
        targets = np.full_like(tokens, -1)
        if step > 0:
            targets[:, : repeated.shape[1]] = repeated
        starts = torch.ones(self._batch, dtype=torch.bool) if step == 0 else None
        batch = Batch(torch.from_numpy(tokens), torch.from_numpy(targets), None, starts)
        return batch, {"epoch": epoch, "step": step + 1}

    def _symbols(self, epoch: int, step: int) -> np.ndarray:
        """Return the symbols (B, L / 2 - 1) that segment `step` shows."""
        random = chance("recall", self._seed, epoch, step + 1)
        return random.integers(self._num_symbols, size=(self._batch, self._half - 1))
