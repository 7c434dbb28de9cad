"""Check, before anything is built, that memory tokens can be added to a model, by inspecting and running it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.utils.quantization_config import QuantizationMethod

from mnemo.errors import MnemoError, one_line
from mnemo.hf.memory_tokens.backbone import additive, body_of, first_position, logits_of, takes_positions
from mnemo.hf.memory_tokens.layer_memory import layers_of
from mnemo.hf.memory_tokens.options import MemoryConfig
from mnemo.hf.memory_tokens.position_ids import num_positions
from mnemo.hf.memory_tokens.previous_segment import key_shape, rotary_frequencies, rotated_back


def check_kind(model: Any) -> None:
    """Refuse everything but a plain transformers model with a head."""
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        if "Peft" in name:
            raise MnemoError(f"memory cannot be added to a {name}: add the memory first, then peft.get_peft_model")
        raise MnemoError(f"expected a transformers model, not a {name}")
    if isinstance(model.config, MemoryConfig):
        raise MnemoError("this model has memory already")
    if model.config.is_encoder_decoder:
        raise MnemoError(f"{name} is an encoder-decoder; memory is for causal language models and encoders")
    if body_of(model) is model:
        raise MnemoError(f"{name} has no head: use the model for causal language modelling or classification")


def forget_gguf(model: Any) -> None:
    """Remove the mark of a GGUF file from a model: its weights are ordinary tensors, which can be trained and saved."""
    quantization = getattr(model.config, "quantization_config", None)
    if quantization is not None and quantization.quant_method == QuantizationMethod.GGUF:
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False


def input_embeddings(model: Any) -> nn.Module:
    try:
        embeddings = model.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        embeddings = None
    takes = "inputs_embeds" in inspect.signature(body_of(model).forward).parameters
    if not isinstance(embeddings, nn.Module) or not takes or getattr(embeddings, "weight", None) is None:
        raise MnemoError(f"{type(model).__name__} does not accept input embeddings, which memory tokens need")
    return embeddings


def embedding_weight(model: Any) -> Tensor:
    weight: Any = input_embeddings(model).weight
    return weight


def check_positions(model: Any, config: MemoryConfig, write: bool) -> None:
    """Refuse segments that exceed the backbone's positions or its attention window."""
    text = model.config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    num_written = config.tokens if write else 0
    before = config.segment if config.attend_previous else 0
    rows = before + num_positions(config.positions, config.segment, config.num_read, num_written)
    if isinstance(limit, int) and limit > 0:
        limit -= first_position(model)
        if rows > limit:
            room = (limit - (rows - config.segment - before)) // (2 if before else 1)
            previous = ", with the previous segment," if before else ""
            raise MnemoError(
                f"segment {config.segment} and {config.tokens} memory tokens{previous} need {rows} positions, but the "
                f"backbone has {limit}: "
                + (f"use segment={room} or less (--segment {room})" if room > 0 else "use fewer memory tokens")
            )
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    total = before + config.segment + config.num_read + num_written
    if isinstance(window, int) and window < total:
        raise MnemoError(
            f"the backbone attends to the last {window} rows only, so {config.segment} tokens would not see the memory "
            f"before them: a segment and its memory must fit {window} rows"
        )


def check_ties(model: Any) -> None:
    """Refuse embeddings that are tied by the configuration but differ: saving would keep only one of them."""
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False) and bool(model._tied_weights_keys)
    if tied and head is not None and head.weight is not embeddings.weight:
        raise MnemoError(
            "the configuration says that input and output embeddings are tied, but they are not: set "
            "config.tie_word_embeddings = False or call tie_weights()"
        )


def check_layers(model: Any, config: MemoryConfig) -> None:
    """Refuse backbones whose layers cannot have an associative memory of the configured shape."""
    layers_of(body_of(model))
    try:
        config.associative_memory().check_width(embedding_weight(model).shape[1])
    except ValueError as error:
        raise MnemoError(str(error)) from None


def check_checkpointing(model: Any, config: MemoryConfig) -> None:
    """Refuse gradient checkpointing of single layers where it would compute something else."""
    if model.is_gradient_checkpointing and (config.kind == "associative" or config.attend_previous):
        raise MnemoError(
            "gradient checkpointing of the backbone would compute its layers again without their memory: disable it, "
            'and use backward="checkpoint"'
        )


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Disable dropout and gradients, and restore the mode of every module afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


class _Trial:
    """Inputs to run a model on: two tokens, the same with a different second token, and a longer text."""

    def __init__(self, model: Any, embeddings: nn.Module) -> None:
        self.body = body_of(model)
        device = embedding_weight(model).device
        padding = getattr(model.config.get_text_config(), "pad_token_id", None)  # its embedding is often zero
        a, b, c = [token for token in range(4) if token != padding][:3]
        self.tokens = torch.tensor([[a, b]], device=device)
        self.rows: Tensor = embeddings(self.tokens)
        self.others: Tensor = embeddings(torch.tensor([[a, c]], device=device))
        self.text: Tensor = embeddings(torch.tensor([[a, b, c, b, a]], device=device))

    def hidden(self, rows: Tensor, **options: Any) -> Tensor:
        if "use_cache" in inspect.signature(self.body.forward).parameters:
            options["use_cache"] = False
        return self.body(inputs_embeds=rows, **options).last_hidden_state

    def looks_ahead(self, **options: Any) -> bool:
        """Return whether the output of the first token depends on the second one."""
        one, other = self.hidden(self.rows, **options)[:, 0], self.hidden(self.others, **options)[:, 0]
        return not torch.allclose(one, other, rtol=1e-4, atol=1e-6)

    def decoded(self) -> tuple[Tensor, int]:
        """Return the text's hidden rows from decoding (a prompt, a token, a block), and the length of the cache."""
        cache = DynamicCache(config=self.body.config)  # type: ignore[call-arg]
        pieces = [
            self.body(inputs_embeds=rows, past_key_values=cache, use_cache=True).last_hidden_state
            for rows in self.text.split([2, 1, 2], 1)
        ]
        return torch.cat(pieces, 1), cache.get_seq_length()

    def keys(self, first: int) -> list[Tensor]:
        """Return the keys (1, h, T, d) of every layer if the text begins at position `first`."""
        cache, num = DynamicCache(config=self.body.config), self.text.shape[1]  # type: ignore[call-arg]
        places = torch.arange(first, first + num, device=self.text.device)[None]
        options = {"position_ids": places} if takes_positions(self.body) else {}
        self.body(inputs_embeds=self.text, past_key_values=cache, use_cache=True, **options)
        return [layer.keys for layer in cache.layers]  # type: ignore[misc]


def try_out(model: Any, config: MemoryConfig, causal: bool) -> None:
    """Run a few tokens to check that the model supports the chosen policies."""
    embeddings = input_embeddings(model)
    name = type(model).__name__
    with quiet(model), torch.autocast(embedding_weight(model).device.type, enabled=False):
        trial = _Trial(model, embeddings)
        width, out = trial.rows.shape[-1], trial.hidden(trial.rows)
        if out.shape[-1] != width:
            raise MnemoError(
                f"the embeddings of {name} are {width} wide and its hidden states {out.shape[-1]}: memory that is "
                "written could not be read"
            )
        if trial.looks_ahead() == causal:
            raise MnemoError(
                f"{name} attends to later tokens: it is not a causal language model"
                if causal
                else f"{name} does not attend to later tokens: classification with memory is for encoders"
            )
        if causal and not _same(logits_of(model, out), model(input_ids=trial.tokens, use_cache=False).logits):
            raise MnemoError(f"the logits of {name} are not its output embeddings of the last hidden state")
        if causal:
            _try_cache(trial, name)
        if config.attend_previous:
            _try_previous(trial, name)
        if config.mask == "block":
            _try_block(trial, model)
        if config.positions != "continue" and config.tokens:
            _try_positions(trial, config.positions, name)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def _close(a: Tensor, b: Tensor) -> bool:
    """Return whether two results agree up to rounding; many models compute parts in single precision at best."""
    tolerance = 2 * max(torch.finfo(dtype).eps for dtype in (b.dtype, torch.float32)) ** 0.5
    return bool((a - b).float().norm() <= tolerance * b.float().norm())


def _try_cache(trial: _Trial, name: str) -> None:
    """Check that decoding with cached keys and values gives the same outputs."""
    if "past_key_values" not in inspect.signature(trial.body.forward).parameters:
        raise MnemoError(f"{name} does not accept past_key_values: it cannot decode with memory tokens")
    try:
        decoded, held = trial.decoded()
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
        raise MnemoError(f"{name} cannot decode with a cache of keys and values: {one_line(error)}") from None
    if held != trial.text.shape[1]:
        raise MnemoError(f"{name} stores no keys and values in past_key_values: it cannot decode with memory tokens")
    if not _close(decoded, trial.hidden(trial.text)):
        raise MnemoError(f"{name} gives other outputs with a cache than without: generated text would be wrong")


def _try_previous(trial: _Trial, name: str) -> None:
    """Check shapes of cached keys, and that keys at later positions can be moved to the first ones."""
    num, distance = trial.text.shape[1], 3
    keys = trial.keys(0)
    expected = key_shape(trial.body.config, num)
    if any(tuple(layer.shape[1:]) != expected for layer in keys):
        raise MnemoError(f"{name} caches keys of another shape than {expected}: attend_previous is not supported")
    frequencies = rotary_frequencies(trial.body)
    if frequencies is None:
        return
    by = torch.tensor([distance], device=keys[0].device)
    moved = [rotated_back(later, by, frequencies) for later in trial.keys(distance)]
    if not all(_close(later, first) for later, first in zip(moved, keys, strict=True)):
        raise MnemoError(f"the rotary positions of {name} differ from Llama's: attend_previous is not supported")


def _try_block(trial: _Trial, model: Any) -> None:
    everything = torch.ones(1, 2, 2, dtype=torch.bool, device=trial.rows.device)
    try:
        works = trial.looks_ahead(attention_mask=additive(everything, trial.rows.dtype))
    except (RuntimeError, ValueError, TypeError, IndexError):
        works = False
    if not works:
        raise MnemoError(
            f"{type(model).__name__} with {model.config._attn_implementation} attention supports no 4-D mask: use "
            'mask="causal" or another attn_implementation'
        )


def _try_positions(trial: _Trial, policy: str, name: str) -> None:
    seen = torch.ones(1, 2, dtype=torch.long, device=trial.rows.device)

    def at(second: int) -> Tensor:
        positions = torch.tensor([[0, second]], device=trial.rows.device)
        return trial.hidden(trial.rows, position_ids=positions, attention_mask=seen)

    if not takes_positions(trial.body) or torch.equal(at(1), at(2)):
        raise MnemoError(f'{name} does not use position_ids: use positions="continue" instead of "{policy}"')
