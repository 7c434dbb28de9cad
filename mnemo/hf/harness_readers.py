"""Models as the evaluation harness needs them: token ids in, log-probabilities and texts out.

Both readers carry the memory from the first token of a text to the last, whatever its length.
Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemo.hf.memory_tokens.modeling import MemoryForCausalLM
from mnemo.hf.memory_tokens.text_memory import TextMemory
from mnemo.hf.modeling import MnemoForCausalLM
from mnemo.hf.tokenization import MnemoTokenizer
from mnemo.inference.generation import read


class Reader(Protocol):
    tokenizer: Any

    @property
    def name(self) -> str:
        """Name of the tokenizer, for the harness's cache of requests."""
        ...

    def encode(self, text: str, special: bool) -> list[int]:
        """Return the ids of a text; `special`: with those that the tokenizer adds at its start."""
        ...

    def prefix(self, text: str | None) -> list[int]:
        """Return the id that stands before texts without context; None selects the model's own choice."""
        ...

    def log_probabilities(self, context: list[int], continuations: list[list[int]]) -> list[Tensor]:
        """Return float64 (tokens, V) for each continuation of the context, which is read once."""
        ...

    def nats(self, ids: list[int]) -> float:
        """Return the sum of the losses of all tokens but the first."""
        ...

    def write(self, ids: list[int], options: dict[str, Any], stop: Any) -> Sequence[int]:
        """Return the ids that continue a text; `stop(column)` gives the criteria for new ids from that column on."""
        ...


class RunReader:
    """A Mnemo model with a tokenizer of the core."""

    def __init__(self, model: MnemoForCausalLM, tokenizer: MnemoTokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer

    @property
    def name(self) -> str:
        return f"mnemo-{self.tokenizer.core.unit}-{self.tokenizer.vocab_size}"

    def encode(self, text: str, special: bool) -> list[int]:
        return self.tokenizer.core.encode(text).tolist()

    def prefix(self, text: str | None) -> list[int]:
        return self.encode("\n" if text is None else text, False)[-1:]

    def log_probabilities(self, context: list[int], continuations: list[list[int]]) -> list[Tensor]:
        before = self.model(self._rows([context]), logits_to_keep=1, use_cache=True)
        cache, count = before.past_key_values, len(continuations)
        cache.batch_repeat_interleave(count)
        logits = before.logits.expand(count, -1, -1)
        if max(map(len, continuations)) > 1:
            rows = self._rows([ids[:-1] for ids in continuations])
            logits = torch.cat([logits, self.model(rows, past_key_values=cache).logits], 1)
        scores = logits.double().log_softmax(-1).cpu()
        return [row[: len(ids)] for row, ids in zip(scores, continuations, strict=True)]

    def _rows(self, rows: Sequence[list[int]]) -> Tensor:
        """Return ids (B, T), padded on the right."""
        return _padded(rows, self.model.config.vocab_size).to(self.model.device)

    def nats(self, ids: list[int]) -> float:
        start = self.model.start_state(1, cached=True)
        return read(self.model.model, torch.tensor(ids), segment=self.model.config.segment, state=start)[1].nats

    def write(self, ids: list[int], options: dict[str, Any], stop: Any) -> Sequence[int]:
        model: Any = self.model
        written = model.generate(self._rows([ids]), stopping_criteria=stop(len(ids)), **options)
        return written[0, len(ids) :]


class MemoryReader:
    """A transformers model with memory and its own tokenizer."""

    def __init__(self, model: MemoryForCausalLM, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer

    @property
    def name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def encode(self, text: str, special: bool) -> list[int]:
        bos = self.tokenizer.bos_token
        special = special and not (bos and text.startswith(bos))
        return self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]

    def prefix(self, text: str | None) -> list[int]:
        if text is not None:
            return self.encode(text, False)[-1:]
        chosen = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        return [token for token in chosen if token is not None][:1]

    def log_probabilities(self, context: list[int], continuations: list[list[int]]) -> list[Tensor]:
        memory, last = self.model.read(context).split_last()
        rows = [[int(last), *ids[:-1]] for ids in continuations]
        lengths = torch.tensor([len(row) for row in rows])
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long().to(self.model.device)
        logits = self._logits(_padded(rows, 0).to(self.model.device), mask, memory)
        scores = logits.double().log_softmax(-1).cpu()
        return [row[: len(ids)] for row, ids in zip(scores, continuations, strict=True)]

    def _logits(self, ids: Tensor, mask: Tensor, memory: TextMemory) -> Tensor:
        return self.model(input_ids=ids, attention_mask=mask, memory=memory).logits  # type: ignore[union-attr]

    def nats(self, ids: list[int]) -> float:
        rows, segment = torch.tensor([ids], device=self.model.device), self.model.config.segment
        total, memory = 0.0, None
        for begin in range(0, len(ids) - 1, segment):
            out: Any = self.model(input_ids=rows[:, begin : begin + segment], memory=memory)
            targets = rows[0, begin + 1 : begin + 1 + segment]
            total += float(F.cross_entropy(out.logits[0, : len(targets)].double(), targets, reduction="sum"))
            memory = out.memory
        return total

    def write(self, ids: list[int], options: dict[str, Any], stop: Any) -> Sequence[int]:
        # The last token of the text is the first column that `generate` sees.
        return self.model.generate(memory=self.model.read(ids), stopping_criteria=stop(1), **options)[0]


def _padded(rows: Sequence[list[int]], padding: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
