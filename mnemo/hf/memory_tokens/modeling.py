"""Transformers models with memory tokens, with the interface of the transformers library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.utils.generic import ModelOutput

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.backbone import CausalRows, EncoderRows, body_of, logits_of
from mnemo.hf.memory_tokens.cache import DecodingModel, MemoryCache
from mnemo.hf.memory_tokens.layer_memory import AssociativeTokens, layers_of
from mnemo.hf.memory_tokens.options import MemoryConfig
from mnemo.hf.memory_tokens.split import SegmentColumns, next_tokens, put_back, split_into_segments
from mnemo.hf.memory_tokens.truncated_bptt import read_sample
from mnemo.hf.modeling import IGNORED, check_prompt
from mnemo.hf.safe_folder import SafeFolder
from mnemo.memory import RecurrentMemory, TokensState
from mnemo.memory.associative.modules import Projection, ZeroProjection
from mnemo.training.bptt import SegmentResult


@dataclass
class MemoryOutput(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: MemoryCache | None = None
    memory: Tensor | None = None
    """(B, m, D) after the last segment; pass it to the next call to continue the text"""


class _WithMemory(SafeFolder, PreTrainedModel):
    config_class = MemoryConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    config: MemoryConfig
    _auto: Any = None
    _encoder = False

    def __init__(self, config: MemoryConfig, backbone: PreTrainedModel | None = None) -> None:
        attention = config._attn_implementation
        super().__init__(config)
        if backbone is None:
            options = {} if attention is None else {"attn_implementation": attention}
            backbone = self._auto.from_config(config.text_config, dtype=torch.get_default_dtype(), **options)
        self.backbone: Any = backbone
        weight = self.backbone.get_input_embeddings().weight
        self.memory_tokens = self._new_memory(weight.shape[1]).to(weight.device, weight.dtype)
        # In training, use only this many of the last segments of each sample (set by a curriculum).
        self.num_segments: int | None = None
        self.post_init()

    def _new_memory(self, dim: int) -> RecurrentMemory | AssociativeTokens:
        if self.config.kind == "tokens":
            return RecurrentMemory(self.config.memory_tokens(self._encoder), dim)
        layers = layers_of(body_of(self.backbone))
        return AssociativeTokens(self.config.write_tokens(), self.config.associative_memory(), layers, dim)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, RecurrentMemory):
            init.normal_(module.initial, 0.0, self.config.std)
        elif isinstance(module, ZeroProjection):
            init.zeros_(module.weight)
        elif isinstance(module, Projection):
            bound = module.in_features**-0.5
            for parameter in module.parameters():
                init.uniform_(parameter, -bound, bound)

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> Any:
        return self.backbone.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.backbone.set_output_embeddings(new_embeddings)

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embed token ids; floating-point input is taken as embeddings and returned unchanged."""
        if tokens.is_floating_point():
            return tokens
        embeddings: Any = self.get_input_embeddings()
        try:
            return embeddings(tokens)
        except IndexError:  # raised on a CPU only; a check on a GPU would force it to synchronize
            raise _beyond("token ids", tokens, len(embeddings.weight)) from None

    def _start(self, batch: int, memory: Tensor | None) -> TokensState:
        state: TokensState = self.memory_tokens.init(batch)
        if memory is None:
            return state
        if memory.shape != state.memory.shape:
            needed = tuple(state.memory.shape)
            raise MnemoError(f"memory has shape {tuple(memory.shape)}; this model needs {needed}")
        return TokensState(memory.to(state.memory), torch.ones_like(state.started), None)

    def _split(
        self, batch: int, width: int, mask: Tensor | None, segment: int, device: torch.device
    ) -> list[SegmentColumns]:
        if mask is not None and mask.shape != (batch, width):
            raise MnemoError(f"attention_mask {tuple(mask.shape)} does not fit input of {(batch, width)}")
        most = self.num_segments if self.training else None
        return split_into_segments(batch, width, mask, segment, self.config.align, device, most)

    def _read(self, step: Any, segments: list[tuple[Any, bool]], state: TokensState) -> list[SegmentResult]:
        config = self.config
        return read_sample(
            step,
            segments,
            state,
            bptt=config.bptt,
            window=config.window,
            method=config.backward,  # type: ignore[arg-type]
        )


class MemoryForCausalLM(_WithMemory, GenerationMixin):
    _auto = AutoModelForCausalLM
    accepts_loss_kwargs = True
    _is_stateful = True  # refuses assisted decoding: memory cannot be rolled back

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        memory: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: MemoryCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> MemoryOutput | tuple[Any, ...]:
        """Read tokens, segment by segment, starting from `memory`, or from the learned memory.

        `labels`: the tokens again; the next token is predicted, also across segment borders. `return_logits`: by
        default logits are omitted in training with labels, where they would use most of the GPU memory.
        `num_items_in_batch`: number of labels in all parts of a batch; the loss is multiplied by this part's share.
        """
        if output_attentions or output_hidden_states:
            raise MnemoError("attentions and hidden states of single layers are not kept across segments")
        if past_key_values is not None or use_cache:
            if labels is not None or input_ids is None:
                raise MnemoError("decoding with a cache needs input_ids and no labels")
            out = self._decode(input_ids, attention_mask, past_key_values, memory, logits_to_keep)
        else:
            source = self._source(input_ids, inputs_embeds)
            keep = return_logits if return_logits is not None else labels is None or not self.training
            out = self._parallel(source, attention_mask, labels, memory, logits_to_keep, keep, num_items_in_batch)
        return out if return_dict is not False else out.to_tuple()

    def _source(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        source = inputs_embeds if input_ids is None else input_ids
        if source is None or (input_ids is not None and inputs_embeds is not None):
            raise MnemoError("give either input_ids or inputs_embeds")
        return source

    def _parallel(
        self,
        source: Tensor,
        mask: Tensor | None,
        labels: Tensor | None,
        memory: Tensor | None,
        logits_to_keep: int,
        keep: bool,
        num_items: Tensor | int | None,
    ) -> MemoryOutput:
        batch, width = source.shape[:2]
        if labels is not None and labels.shape != (batch, width):
            raise MnemoError(f"labels {tuple(labels.shape)} do not fit input of {(batch, width)}")
        segments = self._split(batch, width, mask, self.config.segment, source.device)
        targets = self._targets(labels, mask, segments)
        step = _CausalStep(self, source, targets, keep)
        scored = step.scored(segments)
        reads = self._read(step, list(zip(segments, scored, strict=True)), self._start(batch, memory))
        logits = None
        if keep:
            pieces = [(segment, read.report) for segment, read in zip(segments, reads, strict=True)]
            logits = put_back(pieces, batch, width)[:, -logits_to_keep:]
        loss = None
        if labels is not None and targets is not None:
            share = 1 if num_items is None else (labels[:, 1:] != IGNORED).sum() / num_items
            loss = share * _mean([read.loss for read in reads], targets)
        return MemoryOutput(loss=loss, logits=logits, memory=reads[-1].state.memory)

    def _targets(self, labels: Tensor | None, mask: Tensor | None, segments: list[SegmentColumns]) -> Tensor | None:
        """Return targets (B, T): the next token, -100 in segments without a loss."""
        if labels is None:
            return None
        targets = next_tokens(labels, mask, IGNORED)
        counted = torch.zeros_like(targets, dtype=torch.bool)
        for segment in segments[-(self.config.score or len(segments)) :]:
            rows = torch.arange(len(targets), device=targets.device)[:, None].expand_as(segment.columns)
            valid = segment.valid()
            counted[rows[valid], segment.columns[valid]] = True
        return targets.masked_fill(~counted, IGNORED)

    def _decode(
        self, tokens: Tensor, mask: Tensor | None, cache: Any, memory: Tensor | None, logits_to_keep: int
    ) -> MemoryOutput:
        cache = MemoryCache(memory) if cache is None else cache
        if not isinstance(cache, MemoryCache):
            raise MnemoError(f"past_key_values is a {type(cache).__name__}; use a MemoryCache or leave it out")
        decoding = DecodingModel(self.backbone, self.memory_tokens, self.config, self._embed)  # type: ignore[arg-type]
        hidden = cache.feed(tokens, mask, decoding)
        logits = logits_of(self.backbone, hidden[:, -logits_to_keep:])
        return MemoryOutput(logits=logits, past_key_values=cache, memory=cache.written())

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate like transformers does; the memory is written at segment ends. `memory`: the initial memory."""
        check_prompt(*args, **kwargs)
        if kwargs.get("past_key_values") is None and kwargs.get("use_cache", True):
            kwargs["past_key_values"] = MemoryCache(kwargs.pop("memory", None))
        return super().generate(*args, **kwargs)  # type: ignore[misc]


class _CausalStep:
    """Read a segment: returns the sum of its losses, the memory after it, and its logits if they are kept."""

    def __init__(self, model: MemoryForCausalLM, source: Tensor, targets: Tensor | None, keep: bool) -> None:
        self.model, self.source, self.targets, self.keep = model, source, targets, keep
        self.rows = CausalRows(model.backbone, model.config)

    def scored(self, segments: list[SegmentColumns]) -> list[bool]:
        """Return which segments have losses, or logits, that need gradient."""
        if self.targets is None or self.keep:
            return [True] * len(segments)
        counts = [((segment.take(self.targets) != IGNORED) & segment.valid()).any() for segment in segments]
        scored = torch.stack(counts).tolist()
        return scored if any(scored) else [*scored[:-1], True]  # gives a loss of 0 that can be differentiated

    def __call__(self, segment: SegmentColumns, state: TokensState, scored: bool, /) -> SegmentResult:
        model = self.model
        embeddings = model._embed(segment.take(self.source))
        hidden, after = model.memory_tokens(embeddings, state, self.rows, segment.lengths)
        if not scored:
            return SegmentResult(None, after, None)
        logits = logits_of(model.backbone, hidden)
        loss = None
        if self.targets is not None:
            targets = segment.take(self.targets).masked_fill(~segment.valid(), IGNORED)
            loss = _sum_of_losses(logits, targets)
        return SegmentResult(loss, after, logits if self.keep else None)


def _sum_of_losses(logits: Tensor, targets: Tensor) -> Tensor:
    rows = _at_least_single(logits).flatten(0, 1)
    try:
        return F.cross_entropy(rows, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    except IndexError:
        raise _beyond("labels", targets[targets != IGNORED], rows.shape[1]) from None


def _beyond(what: str, ids: Tensor, vocabulary: int) -> MnemoError:
    return MnemoError(f"{what} from {int(ids.min())} to {int(ids.max())} do not fit a vocabulary of {vocabulary}")


def _at_least_single(logits: Tensor) -> Tensor:
    """Convert half precision logits to single precision, in which losses are computed."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _mean(losses: list[Tensor | None], targets: Tensor) -> Tensor:
    total = torch.stack([loss for loss in losses if loss is not None]).sum()
    return total / (targets != IGNORED).sum().clamp(min=1)


class MemoryForSequenceClassification(_WithMemory):
    _auto = AutoModelForSequenceClassification
    _encoder = True

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        memory: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> MemoryOutput | tuple[Any, ...]:
        """Read tokens, segment by segment, and classify each row by its last segment and the memory before it."""
        if input_ids is None or inputs_embeds is not None or output_attentions or output_hidden_states:
            raise MnemoError("classification with memory needs input_ids, and returns only logits and memory")
        mask = self._without_wrap(input_ids, attention_mask)
        size = self.config.segment - (0 if self.config.wrap is None else 2)
        batch, width = input_ids.shape
        segments = self._split(batch, width, mask, size, input_ids.device)
        step = _EncoderStep(self, input_ids)
        scored = [False] * (len(segments) - 1) + [True]
        reads = self._read(step, list(zip(segments, scored, strict=True)), self._start(len(input_ids), memory))
        logits = reads[-1].report
        loss = None if labels is None else classification_loss(logits, labels, self.backbone.config)
        out = MemoryOutput(loss=loss, logits=logits, memory=reads[-1].state.memory)
        return out if return_dict is not False else out.to_tuple()

    def _without_wrap(self, tokens: Tensor, mask: Tensor | None) -> Tensor | None:
        """Mask the special tokens in the input: they are added to every segment."""
        if self.config.wrap is None:
            return mask
        first, last = self.config.wrap
        text = (tokens != first) & (tokens != last)
        return text if mask is None else text & (mask != 0)


class _EncoderStep:
    def __init__(self, model: MemoryForSequenceClassification, tokens: Tensor) -> None:
        self.model, self.tokens = model, tokens
        self.rows = EncoderRows(model.backbone, model.config)

    def __call__(self, segment: SegmentColumns, state: TokensState, scored: bool, /) -> SegmentResult:
        tokens, lengths = _wrapped(segment.take(self.tokens), segment.lengths, self.model.config.wrap)
        embeddings = self.model._embed(tokens)
        _, after = self.model.memory_tokens(embeddings, state, self.rows, lengths)
        return SegmentResult(None, after._replace(inner=None), after.inner if scored else None)


def _wrapped(tokens: Tensor, lengths: Tensor | None, wrap: tuple[int, int] | None) -> tuple[Tensor, Tensor | None]:
    """Put the two special tokens around the tokens (B, W) of each row; empty rows stay empty."""
    if wrap is None:
        return tokens, lengths
    first, last = (tokens.new_full((len(tokens), 1), token) for token in wrap)
    rows = torch.cat([first, tokens, last], 1)
    if lengths is None:
        return rows, None
    rows = rows.scatter(1, 1 + lengths[:, None], wrap[1])
    return rows, torch.where(lengths > 0, lengths + 2, 0)


def classification_loss(logits: Tensor, labels: Tensor, config: Any) -> Tensor:
    """Return the loss for the configured problem type; if none is set, it follows from the labels."""
    kind, logits = config.problem_type, _at_least_single(logits)
    if kind == "regression" or (kind is None and config.num_labels == 1):
        return F.mse_loss(logits.view(labels.shape), labels.to(logits.dtype))
    if kind == "multi_label_classification" or (kind is None and labels.is_floating_point()):
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
    return F.cross_entropy(logits, labels)
