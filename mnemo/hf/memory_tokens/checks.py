"""Is this model one that memory can be added to? Asked before anything is built, by looking and by trying it out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.backbone import additive, body_of, first_position, logits_of
from mnemo.hf.memory_tokens.options import MemoryConfig
from mnemo.hf.memory_tokens.position_ids import positions_needed


def check_kind(model: Any) -> None:
    """Refuse what is no plain model of the transformers library."""
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        if "Peft" in name:
            raise MnemoError(f"memory cannot be added to a {name}: add the memory first, then peft.get_peft_model")
        raise MnemoError(f"give a model of transformers, not a {name}")
    if isinstance(model.config, MemoryConfig):
        raise MnemoError("this model has memory already")
    if model.config.is_encoder_decoder:
        raise MnemoError(f"{name} is an encoder-decoder; memory is for causal language models and encoders")
    if body_of(model) is model:
        raise MnemoError(f"{name} has no head: use the model for causal language modelling or classification")


def input_embeddings(model: Any) -> nn.Module:
    try:
        embeddings = model.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        embeddings = None
    takes = "inputs_embeds" in inspect.signature(body_of(model).forward).parameters
    if not isinstance(embeddings, nn.Module) or not takes or getattr(embeddings, "weight", None) is None:
        raise MnemoError(f"{type(model).__name__} has no input embeddings that memory tokens could stand beside")
    return embeddings


def embedding_weight(model: Any) -> Tensor:
    weight: Any = input_embeddings(model).weight
    return weight


def check_positions(model: Any, config: MemoryConfig, write: bool) -> None:
    """Refuse segments that do not fit the backbone's positions or its attention window."""
    text = model.config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    rows = positions_needed(config.positions, config.segment, config.tokens, write)
    if isinstance(limit, int) and limit > 0:
        limit -= first_position(model)
        if rows > limit:
            room = limit - (rows - config.segment)
            raise MnemoError(
                f"segment {config.segment} and {config.tokens} memory tokens need {rows} positions, and the backbone "
                f"has {limit}: " + (f"use segment={room} or less" if room > 0 else "use fewer memory tokens")
            )
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    total = config.segment + config.tokens * (1 + write)
    if isinstance(window, int) and window < total:
        raise MnemoError(
            f"the backbone attends to the last {window} rows, so the memory in front of {config.segment} tokens would "
            f"get out of sight: a segment and its memory must fit {window} rows"
        )


def check_ties(model: Any) -> None:
    """Saving keeps one copy of weights that the configuration calls tied, so they must be the same."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False) and bool(model._tied_weights_keys)
    if tied and head is not None and head.weight is not embeddings.weight:
        raise MnemoError(
            "the configuration says that input and output embeddings are tied, and they are not: set "
            "config.tie_word_embeddings = False or call tie_weights()"
        )


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Without dropout and without gradient; afterwards every module is as before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


class _Trial:
    """Two rows of embeddings, the same with another second row, and a longer text for decoding."""

    def __init__(self, model: Any, embeddings: nn.Module) -> None:
        self.body = body_of(model)
        device = embedding_weight(model).device
        self.tokens = torch.tensor([[0, 1]], device=device)
        self.rows: Tensor = embeddings(self.tokens)
        self.others: Tensor = embeddings(torch.tensor([[0, 2]], device=device))
        self.text: Tensor = embeddings(torch.tensor([[0, 1, 2, 1, 0]], device=device))

    def hidden(self, rows: Tensor, **options: Any) -> Tensor:
        if "use_cache" in inspect.signature(self.body.forward).parameters:
            options["use_cache"] = False
        return self.body(inputs_embeds=rows, **options).last_hidden_state

    def looks_ahead(self, **options: Any) -> bool:
        """Whether the first row sees the second one."""
        one, other = self.hidden(self.rows, **options)[:, 0], self.hidden(self.others, **options)[:, 0]
        return not torch.allclose(one, other, rtol=1e-4, atol=1e-6)

    def decoded(self) -> tuple[Tensor, int]:
        """The text's hidden rows, read as decoding does: a prompt, a token, a block; how many rows the cache holds."""
        cache = DynamicCache(config=self.body.config)  # type: ignore[call-arg]
        pieces = [
            self.body(inputs_embeds=rows, past_key_values=cache, use_cache=True).last_hidden_state
            for rows in self.text.split([2, 1, 2], 1)
        ]
        return torch.cat(pieces, 1), cache.get_seq_length()


def try_out(model: Any, config: MemoryConfig, causal: bool) -> None:
    """Run a few tokens, to see that the model does what the chosen policies need of it."""
    embeddings = input_embeddings(model)
    name = type(model).__name__
    with quiet(model):
        trial = _Trial(model, embeddings)
        width, out = trial.rows.shape[-1], trial.hidden(trial.rows)
        if out.shape[-1] != width:
            raise MnemoError(
                f"the embeddings of {name} are {width} wide and its hidden states {out.shape[-1]}: what is written "
                "could not be read"
            )
        if trial.looks_ahead() == causal:
            raise MnemoError(
                f"{name} sees later tokens: it is no causal language model"
                if causal
                else f"{name} does not see later tokens: classification with memory is for encoders"
            )
        if causal and not _same(logits_of(model, out), model(input_ids=trial.tokens, use_cache=False).logits):
            raise MnemoError(f"the logits of {name} are not its output embeddings of the last hidden state")
        if causal:
            _try_cache(trial, name)
        if config.mask == "block":
            _try_block(trial, model)
        if config.positions != "continue" and config.tokens:
            _try_positions(trial, config.positions, name)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def _close(a: Tensor, b: Tensor) -> bool:
    """As close as two ways of computing the same are in this precision; parts of most models are single at best."""
    tolerance = 2 * max(torch.finfo(dtype).eps for dtype in (b.dtype, torch.float32)) ** 0.5
    return bool((a - b).float().norm() <= tolerance * b.float().norm())


def _try_cache(trial: _Trial, name: str) -> None:
    """Decoding keeps the keys and values of earlier rows, and must not change what comes out."""
    if "past_key_values" not in inspect.signature(trial.body.forward).parameters:
        raise MnemoError(f"{name} takes no past_key_values: it cannot decode behind memory tokens")
    try:
        decoded, held = trial.decoded()
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise MnemoError(f"{name} cannot decode with a cache of keys and values: {reason}") from None
    if held != trial.text.shape[1]:
        raise MnemoError(f"{name} keeps no keys and values in past_key_values: it cannot decode behind memory tokens")
    if not _close(decoded, trial.hidden(trial.text)):
        raise MnemoError(f"{name} does not decode with a cache as it reads without: its text would be another one")


def _try_block(trial: _Trial, model: Any) -> None:
    everything = torch.ones(1, 2, 2, dtype=torch.bool, device=trial.rows.device)
    try:
        works = trial.looks_ahead(attention_mask=additive(everything, trial.rows.dtype))
    except (RuntimeError, ValueError, TypeError, IndexError):
        works = False
    if not works:
        raise MnemoError(
            f"{type(model).__name__} with {model.config._attn_implementation} attention takes no 4-D mask: use "
            'mask="causal" or another attn_implementation'
        )


def _try_positions(trial: _Trial, policy: str, name: str) -> None:
    seen = torch.ones(1, 2, dtype=torch.long, device=trial.rows.device)

    def at(second: int) -> Tensor:
        places = torch.tensor([[0, second]], device=trial.rows.device)
        return trial.hidden(trial.rows, position_ids=places, attention_mask=seen)

    takes = "position_ids" in inspect.signature(trial.body.forward).parameters
    if not takes or torch.equal(at(1), at(2)):
        raise MnemoError(f'{name} counts positions by itself: use positions="continue" instead of "{policy}"')
