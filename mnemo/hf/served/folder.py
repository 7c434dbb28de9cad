"""The folder of a transformers model with memory tokens, as a model of the server."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

from mnemo.errors import MnemoError, one_line
from mnemo.hf.memory_tokens.modeling import MemoryForCausalLM
from mnemo.hf.memory_tokens.options import MemoryConfig
from mnemo.hf.memory_tokens.text_memory import TextMemory, fingerprint
from mnemo.hf.served.codec import TokenizerTemplate, TransformersCodec
from mnemo.hf.served.engine import TurnEngine, memory_of, text_state
from mnemo.inference.generation import TextState
from mnemo.memory.state import nbytes
from mnemo.serving.served_model import ServedModel
from mnemo.serving.session_model import Lengths, LoadedState
from mnemo.session.memory_use import MemoryUse
from mnemo.storage.weights import pick_device


def served_folder(name: str, folder: Path, device: str = "auto") -> ServedModel:
    """Load a folder that `save_pretrained` of a model with memory has written, with its tokenizer."""
    loaded, tokenizer = load_folder(folder)
    model: Any = loaded.to(pick_device(device)).eval()
    engine = TurnEngine(model)
    codec = TransformersCodec(tokenizer, len(model.get_input_embeddings().weight))
    sessions = FolderSessions(name, model, engine, _start(model, tokenizer, codec))
    return ServedModel(
        name=name,
        codec=codec,
        engine=engine,
        empty=None,
        start=tuple(sessions.start),
        prefix=tuple(tokenizer("", verbose=False)["input_ids"]),
        end=_ends(model, tokenizer),
        chat=None if tokenizer.chat_template is None else TokenizerTemplate(codec),
        sessions=sessions,
        state_bytes=sessions.nbytes,
        about={"unit": "bpe", "segment": model.config.segment, "memory_tokens": model.config.tokens},
    )


def load_folder(folder: Path) -> tuple[Any, Any]:
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder)
        if not isinstance(config, MemoryConfig):
            raise MnemoError(
                f"{folder} holds a model of the type '{config.model_type}' without memory: mnemo.hf.add_memory adds it "
                "(docs/adding-memory.md)"
            )
        return MemoryForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise MnemoError(f"cannot load {folder}: {one_line(error)}") from None


def _start(model: MemoryForCausalLM, tokenizer: Any, codec: TransformersCodec) -> list[int]:
    """Tokens to read before a text without a prompt."""
    known = [token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id) if token is not None]
    return known[:1] or codec.encode("\n") or [0]


def _ends(model: MemoryForCausalLM, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a text, by the tokenizer and by the settings of generation."""
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    listed = ends if isinstance(ends, list) else [ends]
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if token is not None)


class FolderSessions:
    """Sessions of a transformers model with memory: the memory has one length, and is always on."""

    memory_is_fixed = True

    def __init__(self, name: str, model: MemoryForCausalLM, engine: TurnEngine, start: list[int]) -> None:
        self.name, self.model, self.engine, self.start = name, model, engine, start
        self.segment = int(model.config.segment)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.model)

    def start_ids(self) -> Tensor:
        return torch.tensor(self.start)

    def empty(self, lengths: Lengths) -> None:
        return None

    def state_bytes(self, lengths: Lengths) -> int:
        return self.nbytes(None)

    def num_open(self, state: TextState | None) -> int:
        return 0 if state is None else memory_of(state).open.shape[1]

    def resized(self, state: TextState, lengths: Lengths) -> TextState:
        return state

    def without_open(self, state: TextState, lengths: Lengths, on: bool) -> TextState:
        raise MnemoError(f"the memory of '{self.name}' cannot be turned off or changed")

    def save(self, path: Path, state: TextState | None) -> None:
        if state is None:
            raise MnemoError("there is nothing to save: no text has been read yet")
        self.model.save_memory(path, memory_of(state))

    def load(self, path: Path) -> LoadedState:
        memory = self.model.load_memory(path)
        if len(memory.open) != 1:
            raise MnemoError(f"this memory belongs to {len(memory.open)} texts; a session has one")
        return LoadedState(text_state(memory), memory.num_tokens, None)

    def nbytes(self, state: TextState | None) -> int:
        """Bytes of the memory and of the open segment's tokens."""
        memory = self._memory(state)
        return nbytes(memory.state) + memory.open.numel() * memory.open.element_size()

    def _memory(self, state: TextState | None) -> TextMemory:
        if state is not None:
            return memory_of(state)
        return TextMemory(self.model.first_state(1), torch.empty(1, 0, dtype=torch.int64), 0)

    def memory_use(self, state: TextState | None, on: bool) -> MemoryUse:
        memory = self._memory(state)
        written = memory.num_tokens > memory.open.shape[1]
        return MemoryUse(
            layers=(),
            memory_tokens=self.model.config.tokens if written else 0,
            open=memory.open.shape[1],
            segment=self.segment,
            tokens=memory.num_tokens,
            nbytes=self.nbytes(state),
            on=on,
        )
