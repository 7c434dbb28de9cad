"""Transformers models with memory tokens, with the interface of the transformers library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.utils.generic import ModelOutput

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.backbone import CausalRows, EncoderRows, body_of, logits_of
from mnemo.hf.memory_tokens.cache import DecodingModel, MemoryCache
from mnemo.hf.memory_tokens.carried import Carried, carried, continued
from mnemo.hf.memory_tokens.checks import quiet
from mnemo.hf.memory_tokens.layer_memory import AssociativeTokens, layers_of
from mnemo.hf.memory_tokens.options import MemoryConfig
from mnemo.hf.memory_tokens.overlap import FIRST_GATE, OverlapMemory
from mnemo.hf.memory_tokens.reading import SegmentReader, Source, id_pieces
from mnemo.hf.memory_tokens.silent_mistakes import warn_of_frozen_memory, warn_of_windows
from mnemo.hf.memory_tokens.split import SegmentColumns, next_tokens, put_back, split_into_segments
from mnemo.hf.memory_tokens.text_memory import TextMemory, load_text_memory, save_text_memory
from mnemo.hf.memory_tokens.truncated_bptt import read_sample
from mnemo.hf.model_card import write_card
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
    memory: Carried | None = None
    """Memory tokens (B, m, D) after the last segment, or the associations of every layer, with the last segment if the
    next one attends to it; pass it to the next call to continue the text"""


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
        self.warned_of_windows = self.checked_for_training = False
        self.post_init()

    def _new_memory(self, dim: int) -> RecurrentMemory | AssociativeTokens | OverlapMemory:
        if self.config.attend_previous:
            self.supports_gradient_checkpointing = False  # of single layers: it disables their cache
        if self.config.start == "overlap":
            return OverlapMemory(self.config.memory_tokens(), dim)
        if self.config.kind == "tokens":
            return RecurrentMemory(self.config.memory_tokens(self._encoder), dim)
        self.supports_gradient_checkpointing = False  # of single layers; `backward` does so for segments
        layers = layers_of(body_of(self.backbone))
        return AssociativeTokens(self.config.write_tokens(), self.config.associative_memory(), layers, dim)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save like transformers does, with checksums of the weights and a model card."""
        super().save_pretrained(save_directory, *args, **kwargs)
        write_card(Path(save_directory), self.config)

    def save_card(
        self,
        folder: str | Path,
        *,
        training: str | None = None,
        scores: Mapping[str, Any] | None = None,
        licence: str | None = None,
    ) -> None:
        """Write the model card of a saved folder again, with a description of the training and a table of scores.

        `licence`: such as "apache-2.0"; if unset, that of a local backbone whose page names one.
        """
        write_card(Path(folder), self.config, training=training, scores=scores, licence=licence)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, RecurrentMemory):
            init.normal_(module.initial, 0.0, self.config.std)
        elif isinstance(module, OverlapMemory):
            init.constant_(module.gate, FIRST_GATE)
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

    def _start(self, batch: int, memory: Carried | TextMemory | None) -> TokensState:
        if isinstance(memory, TextMemory):
            return memory.state
        if memory is None:
            return self.first_state(batch, unread=True)
        return continued(self.first_state(batch), memory)

    def first_state(self, batch: int, unread: bool = False) -> TokensState:
        """Return the state at the start of a text; `unread`: without the zeros of empty associative memories."""
        inner = None if self._encoder else CausalRows(self.backbone, self.config).first_state(batch)
        if unread and isinstance(self.memory_tokens, AssociativeTokens):
            return self.memory_tokens.init_unread(batch, inner)
        return self.memory_tokens.init(batch, inner)  # type: ignore[operator]

    def _split(
        self, batch: int, width: int, mask: Tensor | None, segment: int, align: str, device: torch.device
    ) -> list[SegmentColumns]:
        if mask is not None and mask.shape != (batch, width):
            raise MnemoError(f"attention_mask {tuple(mask.shape)} does not fit input of {(batch, width)}")
        most = self.num_segments if self.training else None
        return split_into_segments(batch, width, mask, segment, align, device, most)

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
    """A causal language model of transformers with memory; `add_memory` makes one.

    A call reads a text of any length segment by segment, and returns logits of all its tokens.
    """

    _auto = AutoModelForCausalLM
    accepts_loss_kwargs = True
    _is_stateful = True  # refuses assisted decoding: memory cannot be rolled back

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        memory: Carried | TextMemory | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: MemoryCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_logits: bool | None = None,
        return_memory: bool = True,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> MemoryOutput | tuple[Any, ...]:
        """Read tokens, segment by segment, starting from `memory`, or from the learned memory.

        `memory`: the memory after an earlier call, which the input follows as a new segment, or what `read` returned,
        whose open segment the input continues. `labels`: the tokens again; the next token is predicted, also across
        segment borders. `logits_to_keep`: return the logits of the last columns only (0: of all); others are not
        computed. `return_logits`: by default logits are omitted in training with labels, where they would use most of
        the GPU memory. `return_memory`: without it, an associative memory is not written after the last segment, which
        only a next call would read. `num_items_in_batch`: number of labels in all parts of a batch; the sum of the
        losses is divided by it, so that the parts add up to the batch. Not with `score` or a curriculum, which leave
        out labels that the number includes: there, the mean is multiplied by this part's share of the labels, and parts
        whose rows differ in length do not add up to the batch exactly.
        """
        if output_attentions or output_hidden_states:
            raise MnemoError("attentions and hidden states of single layers are not kept across segments")
        warn_of_windows(self)
        if labels is not None:
            warn_of_frozen_memory(self)
        if not isinstance(logits_to_keep, int) or logits_to_keep < 0:
            raise MnemoError("logits_to_keep is the number of last columns whose logits are returned; 0 for all")
        if past_key_values is not None or use_cache:
            if labels is not None or input_ids is None:
                raise MnemoError("decoding with a cache needs input_ids and no labels")
            out = self._decode(input_ids, attention_mask, past_key_values, memory, logits_to_keep)
        else:
            given = _Given(self._source(input_ids, inputs_embeds), attention_mask, labels)
            keep = return_logits if return_logits is not None else labels is None or not self.training
            num_logits = (logits_to_keep or given.width) if keep else 0
            if isinstance(memory, TextMemory):
                memory = memory.for_batch(given.batch, given.source.device)
                given = given.after(memory.open, self._embed)
            out = self._parallel(given, memory, num_logits, return_memory, num_items_in_batch)
        return out if return_dict is not False else out.to_tuple()

    def _source(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        source = inputs_embeds if input_ids is None else input_ids
        if source is None or (input_ids is not None and inputs_embeds is not None):
            raise MnemoError("give either input_ids or inputs_embeds")
        return source

    def _parallel(
        self,
        given: _Given,
        memory: Carried | TextMemory | None,
        num_logits: int,
        return_memory: bool,
        num_items: Tensor | int | None,
    ) -> MemoryOutput:
        batch, width, labels = given.batch, given.width, given.labels
        if labels is not None and labels.shape != (batch, width):
            raise MnemoError(f"labels {tuple(labels.shape)} do not fit input of {(batch, width)}")
        # An open segment begins the input: only the last segment can be short.
        align = "left" if isinstance(memory, TextMemory) else self.config.align
        segments = self._split(batch, width, given.mask, self.config.segment, align, given.source.device)
        targets = self._targets(labels, given.mask, segments)
        first = max(0, width - num_logits)
        step = _CausalStep(self, given.source, targets, first, None if return_memory else segments[-1])
        scored = step.scored(segments)
        reads = self._read(step, list(zip(segments, scored, strict=True)), self._start(batch, memory))
        logits = None
        if num_logits:
            reports = [(segment, read.report) for segment, read in zip(segments, reads, strict=True)]
            pieces = [piece for piece in reports if piece[1] is not None]
            vocabulary = self.get_output_embeddings().weight
            # Without pieces all these columns are padding.
            logits = (
                put_back(pieces, batch, first, width)
                if pieces
                else vocabulary.new_zeros(batch, width - first, len(vocabulary))
            )
        loss = None
        if labels is not None and targets is not None:
            total = torch.stack([read.loss for read in reads if read.loss is not None]).sum()
            loss = total / self._num_items(labels, targets, num_items)
        return MemoryOutput(loss=loss, logits=logits, memory=carried(reads[-1].state) if return_memory else None)

    def _targets(self, labels: Tensor | None, mask: Tensor | None, segments: list[SegmentColumns]) -> Tensor | None:
        """Return targets (B, T): the next token, -100 in segments without a loss."""
        if labels is None:
            return None
        targets = next_tokens(labels, mask, IGNORED)
        if not self._leaves_out_labels():
            return targets  # every segment has a loss; selecting their tokens would force a GPU to synchronize
        counted = torch.zeros_like(targets, dtype=torch.bool)
        for segment in segments[-(self.config.score or len(segments)) :]:
            rows = torch.arange(len(targets), device=targets.device)[:, None].expand_as(segment.columns)
            valid = segment.valid()
            counted[rows[valid], segment.columns[valid]] = True
        return targets.masked_fill(~counted, IGNORED)

    def _leaves_out_labels(self) -> bool:
        return self.config.score is not None or bool(self.training and self.num_segments)

    def _num_items(self, labels: Tensor, targets: Tensor, num_items: Tensor | int | None) -> Tensor | int:
        """Return what the sum of the losses is divided by; `num_items`: labels in all parts of the batch."""
        if num_items is not None and not self._leaves_out_labels():
            return num_items
        counted = (targets != IGNORED).sum().clamp(min=1)
        return counted if num_items is None else counted * num_items / (labels[:, 1:] != IGNORED).sum()

    def _decode(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        cache: Any,
        memory: Carried | TextMemory | None,
        logits_to_keep: int,
    ) -> MemoryOutput:
        cache = MemoryCache(memory) if cache is None else cache
        if not isinstance(cache, MemoryCache):
            raise MnemoError(f"past_key_values is a {type(cache).__name__}; use a MemoryCache or leave it out")
        decoding = DecodingModel(self.backbone, self.memory_tokens, self.config, self._embed)  # type: ignore[arg-type]
        logits = logits_of(self.backbone, cache.feed(tokens, mask, decoding, logits_to_keep))
        return MemoryOutput(logits=logits, past_key_values=cache, memory=cache.written())

    def read(self, source: Source, memory: TextMemory | None = None, *, tokenizer: Any = None) -> TextMemory:
        """Read a text of any length, and return the memory after it; time is linear in the text, memory constant.

        `source`: token ids (a list, or a tensor with a row for each text), a string, or an iterable of such pieces,
        for example an open file. Strings need a `tokenizer`; every piece is tokenized separately. `memory`: continue
        the text that was read before. Segments are counted from the start of the text, whatever `align` says.
        """
        reader = SegmentReader(self, memory)
        with quiet(self):
            for ids in id_pieces(source, tokenizer, memory is None, self.config.segment):
                reader.feed(ids)
            return reader.memory()

    def save_memory(self, path: str | Path, memory: TextMemory) -> None:
        """Write the memory after a text as a file with a checksum; only this model can load it."""
        save_text_memory(Path(path), memory, self)

    def load_memory(self, path: str | Path) -> TextMemory:
        """Load a file of `save_memory`; raise MnemoError if another model wrote it or if it is damaged."""
        return load_text_memory(Path(path), self)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate like transformers does; the memory is written at segment ends.

        `memory`: the initial memory, or what `read` returned. With the latter, the prompt may be left out: the result
        then holds only the tokens that continue the text.
        """
        check_prompt(*args, **kwargs)
        memory = kwargs.get("memory")
        prompt = args or kwargs.get("inputs") is not None or kwargs.get("input_ids") is not None
        if isinstance(memory, TextMemory) and not prompt:
            kwargs["memory"], last = memory.split_last()
            return without_first_column(self.generate(last, attention_mask=torch.ones_like(last), **kwargs))
        if kwargs.get("past_key_values") is None and kwargs.get("use_cache", True):
            kwargs["past_key_values"] = MemoryCache(kwargs.pop("memory", None))
        return super().generate(*args, **kwargs)  # type: ignore[misc]


def without_first_column(generated: Any) -> Any:
    """Remove the last token of the earlier text from the result of `generate`."""
    if isinstance(generated, Tensor):
        return generated[:, 1:]
    generated.sequences = generated.sequences[:, 1:]
    return generated


class _Given(NamedTuple):
    """The input of a call."""

    source: Tensor
    """Token ids (B, T) or embeddings (B, T, D)"""
    mask: Tensor | None
    labels: Tensor | None

    @property
    def batch(self) -> int:
        return self.source.shape[0]

    @property
    def width(self) -> int:
        return self.source.shape[1]

    def after(self, opened: Tensor, embed: Callable[[Tensor], Tensor]) -> _Given:
        """Return the input with the tokens of an open segment before it; those have no loss."""
        before = embed(opened) if self.source.is_floating_point() else opened
        mask = None if self.mask is None else torch.cat([torch.ones_like(opened).to(self.mask), self.mask], 1)
        ignored = torch.full_like(opened, IGNORED)
        labels = None if self.labels is None else torch.cat([ignored.to(self.labels), self.labels], 1)
        return _Given(torch.cat([before, self.source], 1), mask, labels)


class _CausalStep:
    """Read a segment: returns the sum of its losses, the memory after it, and its logits from column `first` on.

    `last`: a segment after which an associative memory is not written, because no other segment follows.
    """

    def __init__(
        self,
        model: MemoryForCausalLM,
        source: Tensor,
        targets: Tensor | None,
        first: int,
        last: SegmentColumns | None,
    ) -> None:
        self.model, self.source, self.targets, self.first, self.last = model, source, targets, first, last
        self.rows = CausalRows(model.backbone, model.config)

    def scored(self, segments: list[SegmentColumns]) -> list[bool]:
        """Return which segments have losses, or logits, that need gradient."""
        scored = [self._num_logits(segment) > 0 for segment in segments]
        if self.targets is not None:
            counts = [((segment.take(self.targets) != IGNORED) & segment.valid()).any() for segment in segments]
            scored = [wanted or counted for wanted, counted in zip(scored, torch.stack(counts).tolist(), strict=True)]
        # The last segment gives a memory, and with targets a loss of 0, that can be differentiated.
        return scored if any(scored) else [*scored[:-1], True]

    def _num_logits(self, segment: SegmentColumns) -> int:
        """Return how many of the last slots of a segment have logits that the caller wants."""
        if self.first in (0, self.source.shape[1]):  # all or none, known without looking at values on a GPU
            return segment.columns.shape[1] if self.first == 0 else 0
        return segment.num_slots_from(self.first)

    def __call__(self, segment: SegmentColumns, state: TokensState, scored: bool, /) -> SegmentResult:
        model = self.model
        embeddings = model._embed(segment.take(self.source))
        unwritten = segment is self.last and isinstance(model.memory_tokens, AssociativeTokens)
        options = {"write": False} if unwritten else {}
        hidden, after = model.memory_tokens(embeddings, state, self.rows, segment.lengths, **options)
        if not scored:
            return SegmentResult(None, after, None)
        wanted, targets = self._num_logits(segment), None
        if self.targets is not None:
            targets = segment.take(self.targets).masked_fill(~segment.valid(), IGNORED)
        if not wanted:
            return SegmentResult(None if targets is None else self._loss(hidden, targets), after, None)
        if targets is None:
            return SegmentResult(None, after, logits_of(model.backbone, hidden[:, hidden.shape[1] - wanted :]))
        logits = logits_of(model.backbone, hidden)
        return SegmentResult(_sum_of_losses(logits, targets), after, logits[:, logits.shape[1] - wanted :])

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses; logits are computed for tokens with a target only."""
        labelled = targets != IGNORED
        return _sum_of_losses(logits_of(self.model.backbone, hidden[labelled]), targets[labelled])


def _sum_of_losses(logits: Tensor, targets: Tensor) -> Tensor:
    rows = _at_least_single(logits).flatten(0, -2)
    try:
        return F.cross_entropy(rows, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    except IndexError:
        raise _beyond("labels", targets[targets != IGNORED], rows.shape[1]) from None


def _beyond(what: str, ids: Tensor, vocabulary: int) -> MnemoError:
    return MnemoError(f"{what} from {int(ids.min())} to {int(ids.max())} do not fit a vocabulary of {vocabulary}")


def _at_least_single(logits: Tensor) -> Tensor:
    """Convert half precision logits to single precision, in which losses are computed."""
    return logits if logits.dtype == torch.float64 else logits.float()


class MemoryForSequenceClassification(_WithMemory):
    """An encoder with a classification head and memory tokens; `add_memory` makes one.

    The logits are those of the last segment, which has the memory of all earlier ones.
    """

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
        segments = self._split(batch, width, mask, size, self.config.align, input_ids.device)
        step = _EncoderStep(self, input_ids)
        scored = [False] * (len(segments) - 1) + [True]
        reads = self._read(step, list(zip(segments, scored, strict=True)), self._start(len(input_ids), memory))
        logits = reads[-1].report
        loss = None if labels is None else classification_loss(logits, labels, self.backbone.config)
        out = MemoryOutput(loss=loss, logits=logits, memory=carried(reads[-1].state))
        return out if return_dict is not False else out.to_tuple()

    def _without_wrap(self, tokens: Tensor, mask: Tensor | None) -> Tensor | None:
        """Mask the special tokens around each row: they are added to every segment. Those inside, as in pairs, stay."""
        if self.config.wrap is None:
            return mask
        first, last = self.config.wrap
        valid = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask != 0
        place = valid.cumsum(1)
        around = ((place == 1) & (tokens == first)) | ((place == place[:, -1:]) & (tokens == last))
        return valid & ~around


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
