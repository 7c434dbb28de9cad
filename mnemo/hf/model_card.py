"""README.md of a saved model with memory: what it is, and how it is loaded.

The page is what others see of the folder, on the Hub and where Mnemo is not installed: there, transformers only says
that it does not know the type `mnemo-memory`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError, install_command
from mnemo.files import atomic
from mnemo.hf.memory_tokens.options import MemoryConfig

CARD = "README.md"
MARK = "<!-- written by mnemo.hf -->"
"""Marks a page that saving may replace; another README.md is kept"""
PAGE = """---
{front}
---

{mark}

# {title} with memory

{base} with {memory}. The model reads text of any length in segments of {segment} tokens, and carries its memory from
segment to segment.

## Loading

{loading}
tokenizer = AutoTokenizer.from_pretrained("{tokenizer}")
memory = model.read(open("book.txt"), tokenizer=tokenizer)
answer = model.generate(**tokenizer("Question", return_tensors="pt"), memory=memory)
```

Without Mnemo, transformers says that it does not know the model type `mnemo-memory`, and may advise to upgrade
transformers or to install sentencepiece. Neither helps. The folder contains no code, and `trust_remote_code` is not
needed.

- vLLM does not run this model: its engine has no step between segments in which the memory is written.
- llama.cpp does not run it either, for the same reason.
- GGUF files can be loaded as the backbone, but a model with memory cannot be saved as GGUF.

## Memory

| option | value |
|---|---|
{options}

## Training

{training}

## Scores

{scores}
"""


WHOLE = """This model needs the package Mnemo ({install}). One import registers it:

```python
import mnemo.hf
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("THIS FOLDER")"""
ADAPTER = """This folder holds the trained memory without the model around which it was trained. It needs the package
Mnemo ({install}):

```python
from mnemo.hf import load_adapter
from transformers import AutoModelForCausalLM, AutoTokenizer

model = load_adapter("THIS FOLDER", AutoModelForCausalLM.from_pretrained("{backbone}"))"""


def write_card(
    folder: Path,
    config: MemoryConfig,
    *,
    training: str | None = None,
    scores: Mapping[str, Any] | None = None,
    licence: str | None = None,
    adapter: bool = False,
) -> None:
    """Write README.md, unless the folder has one from elsewhere."""
    path = folder / CARD
    if path.is_file() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        return
    try:
        with atomic.new_file(path) as partial:
            partial.write_text(card(config, training, scores, licence, adapter), encoding="utf-8")
    except OSError as error:
        raise MnemoError(f"cannot save {path}: {error.strerror or error}") from None


def card(
    config: MemoryConfig,
    training: str | None,
    scores: Mapping[str, Any] | None,
    licence: str | None = None,
    adapter: bool = False,
) -> str:
    """Return the page."""
    source = str(getattr(config.text_config, "_name_or_path", "") or "")
    # A folder of this machine tells others nothing but its last name.
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", source) is not None and not Path(source).is_dir()
    name = source if on_hub else Path(source).name
    base = f"`{name}`" if name else f"A model of type `{config.text_config.model_type}`"
    values = {option: getattr(config, option) for option in ("kind", "tokens", "segment", "start", "mask", "positions")}
    rows = "\n".join(f"| {option} | {value} |" for option, value in values.items())
    table = "\n".join(f"| {key} | {value} |" for key, value in (scores or {}).items())
    return PAGE.format(
        front=_front(name if on_hub else None, licence or _licence(Path(source))),
        mark=MARK,
        title=Path(name).name or config.text_config.model_type,
        base=base,
        memory=_memory(config),
        segment=config.segment,
        loading=(ADAPTER if adapter else WHOLE).format(
            install=install_command("hf"), backbone=name if on_hub else "ITS BACKBONE"
        ),
        tokenizer=name if on_hub else "THIS FOLDER",
        options=rows,
        training=training or "Not described. `model.save_card(folder, training=..., scores=...)` adds it.",
        scores=f"| measure | value |\n|---|---|\n{table}" if table else "None given.",
    )


def _memory(config: MemoryConfig) -> str:
    if config.kind == "associative":
        return f"an associative memory in every layer (ARMT), written by {config.tokens} memory tokens"
    return f"{config.tokens} recurrent memory tokens (RMT)"


def _front(base_model: str | None, licence: str) -> str:
    """Return the metadata that the Hub reads."""
    lines = ["library_name: transformers", "pipeline_tag: text-generation", "tags: [mnemo, memory]"]
    if base_model is not None:
        lines.append(f"base_model: {json.dumps(base_model)}")
    return "\n".join([*lines, f"license: {licence}"])


def _licence(folder: Path) -> str:
    """Return the licence that the card of a local backbone names; "other" if there is none."""
    try:
        lines = (folder / CARD).read_text(encoding="utf-8").split("\n---", 1)[0].splitlines()
    except (OSError, UnicodeDecodeError):
        return "other  # that of the base model"
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("license:")]
    return found[0] if found and found[0] else "other  # that of the base model"
