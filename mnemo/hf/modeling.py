"""`MnemoForCausalLM`: the core model with the interface of the transformers library.

There are two paths. Decoding keeps the memory and an open segment, and continues from them: `generate` uses it, and
calls with a cache in evaluation mode. Reading whole segments is differentiable: training, labels and calls without a
cache use it. Both give the same results for a text in one call. The second one ends the last segment with the call.
Shapes: B rows, T columns, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from mnemo.errors import MnemoError
from mnemo.hf.cache import MnemoCache
from mnemo.hf.configuration import MnemoConfig
from mnemo.hf.packing import Packed, pack
from mnemo.hf.safe_folder import SafeFolder
from mnemo.hf.segment_loop import SegmentsOutput, run_segments
from mnemo.memory.state import State, choose, detach, leaves
from mnemo.model import Model, Output

IGNORED = -100
"""Label of positions without a loss."""


class MnemoForCausalLM(SafeFolder, PreTrainedModel, GenerationMixin):
    """A model of Mnemo as a causal language model of transformers.

    `past_key_values` is a `MnemoCache`: the memory and the open segment, of a size that does not grow with the text.
    """

    config_class = MnemoConfig
    config: MnemoConfig
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _is_stateful = True  # refuses assisted decoding: a memory cannot be rolled back
    _no_split_modules = ["Model"]

    def __init__(self, config: MnemoConfig) -> None:
        super().__init__(config)
        self.model = Model(config.core)
        self.gradient_checkpointing = False
        self.loss_type = "ForCausalLM"
        self.post_init()
        if self.generation_config is not None:
            self.generation_config.pad_token_id = config.vocab_size

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: MnemoCache | None = None,
        labels: Tensor | None = None,
        starts: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Read tokens (B, T), split into segments, given the memory in `past_key_values`.

        `labels`: the tokens again, -100 where there is no loss; or `shift_labels`, the same moved one to the left.
        `starts` (B,): rows that begin a document; they get the memory of a new text. In training with labels, logits
        are omitted (`skip_logits`), so that logits of a large vocabulary are never materialised.
        """
        if inputs_embeds is not None or input_ids is None:
            raise MnemoError("a Mnemo model needs input_ids; inputs_embeds are not supported")
        shift_labels = _shift_labels(kwargs)
        _check_cache(past_key_values)
        packed = pack(input_ids, attention_mask, self.config.vocab_size)
        targets = _targets(packed, input_ids, labels, shift_labels)
        scored = targets is not None or starts is not None
        if not scored and self._decodes(past_key_values, use_cache):
            output = self._decode(packed, input_ids.shape[1], past_key_values, logits_to_keep)
        else:
            skip = self.training and targets is not None if skip_logits is None else skip_logits
            out = self._run_segments(packed, past_key_values, targets, starts)
            output = CausalLMOutputWithPast(
                loss=None if targets is None else _mean(out, targets, num_items_in_batch),  # type: ignore[arg-type]
                logits=None if skip else self._logits(packed.unpack(out.hidden), logits_to_keep),  # type: ignore[arg-type]
                past_key_values=self._cache_of(out, input_ids.shape[1], past_key_values, use_cache),
            )
        return output if return_dict or return_dict is None and self.config.return_dict else output.to_tuple()

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate like transformers does, but refuse an empty prompt."""
        check_prompt(*args, **kwargs)
        if self.config.decoding == "calls" and not kwargs.get("use_cache", True):
            raise MnemoError('decoding="calls" needs the cache: a text that is read again at once is another segment')
        return super().generate(*args, **kwargs)  # type: ignore[misc]

    def _decodes(self, cache: MnemoCache | None, use_cache: bool | None) -> bool:
        """Return whether a call without labels leaves its last segment open, for which it needs a cache."""
        if torch.is_grad_enabled() and self.training:
            return False
        # With gradients, a cache must be asked for: calls without one are differentiable.
        default = self.config.use_cache and not torch.is_grad_enabled()
        return cache is not None or (default if use_cache is None else use_cache)

    def _decode(
        self, packed: Packed, columns: int, cache: MnemoCache | None, keep: int | Tensor
    ) -> CausalLMOutputWithPast:
        cache = MnemoCache() if cache is None else cache
        start = self.start_state(len(packed.tokens), cached=True)
        segment = self.config.segment if self.config.decoding == "segments" else None
        hidden = cache.feed(self.model, packed, columns, segment, start)
        return CausalLMOutputWithPast(logits=self._logits(hidden, keep), past_key_values=cache)  # type: ignore[arg-type]

    def start_state(self, batch: int, cached: bool = False, lengths: tuple[int, ...] | None = None) -> State:
        """Return the memory at the start of a text; `cached`: the form for inference; `lengths`: those of `init`."""
        return (self.model.zeros if self.config.start == "zeros" else self.model.init)(batch, lengths, cached)

    def _begin(self, state: State, starts: Tensor) -> State:
        """Return the state in which the rows `starts` (B,) have the memory of a new text."""
        new = self.start_state(len(starts), lengths=self.model.init_lengths(state))
        if [name for name, _ in leaves(new)] != [name for name, _ in leaves(state)]:
            new = self.start_state(len(starts), cached=True, lengths=self.model.init_lengths(state))
        return choose(starts.bool(), new, state)

    def _run_segments(
        self, packed: Packed, cache: MnemoCache | None, targets: Tensor | None, starts: Tensor | None
    ) -> SegmentsOutput:
        state = None if cache is None else cache.plain_state()
        if state is None:
            state = self.start_state(len(packed.tokens))
        elif starts is not None:
            state = self._begin(state, starts)
        recompute = partial(checkpoint, use_reentrant=False) if self.gradient_checkpointing and self.training else None
        return run_segments(
            self.model, packed, state, segment=self.config.segment, targets=targets, checkpoint=recompute
        )

    def _cache_of(
        self, out: SegmentsOutput, columns: int, cache: MnemoCache | None, use_cache: bool | None
    ) -> MnemoCache | None:
        if cache is None and not use_cache:
            return None
        cache = MnemoCache() if cache is None else cache
        cache.keep(detach(out.state), columns)
        return cache

    def _logits(self, hidden: Tensor, keep: int | Tensor) -> Tensor:
        part = hidden[:, -keep:] if isinstance(keep, int) else hidden[:, keep]
        return self.model.logits(Output(part, {}))

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load like transformers does, but refuse pickles, changed files, and missing or unexpected weights."""
        loaded: Any = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model, info = loaded
        for relation, names in (("has no", info["missing_keys"]), ("has an unexpected", info["unexpected_keys"])):
            for name in sorted(names):
                raise MnemoError(f"{args[0]} does not fit its configuration: it {relation} tensor '{name}'")
        return (model, info) if output_loading_info else model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: the core initialises its weights in its constructor, and loading refuses missing weights."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `forward` creates the cache

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def get_output_embeddings(self) -> None:
        return None

    def set_input_embeddings(self, value: nn.Module) -> None:
        raise MnemoError("the vocabulary of a Mnemo model is fixed: its softmax may be adaptive and tied")

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        raise MnemoError("the vocabulary of a Mnemo model is fixed: its softmax may be adaptive and tied")


def check_prompt(inputs: Tensor | None = None, *_: Any, input_ids: Tensor | None = None, **__: Any) -> None:
    """Raise an error if the prompt of `generate` has no tokens."""
    prompt = input_ids if inputs is None else inputs
    if prompt is not None and prompt.numel() == 0:
        raise MnemoError("cannot generate: the prompt is empty")


def _shift_labels(kwargs: dict[str, Any]) -> Tensor | None:
    """Return `shift_labels`, and refuse every other keyword argument unless it is None or False."""
    given = {name: value for name, value in kwargs.items() if value is not None and value is not False}
    shift_labels = given.pop("shift_labels", None)
    given.pop("cache_position", None)  # not needed: the cache counts columns itself
    if "output_attentions" in given or "output_hidden_states" in given:
        raise MnemoError("attentions and hidden states are not returned; model.model.explain(tokens) has them")
    for name in given:
        raise MnemoError(f"a Mnemo model does not accept the argument '{name}'")
    return shift_labels


def _check_cache(cache: object) -> None:
    if cache is not None and not isinstance(cache, MnemoCache):
        raise MnemoError(f"past_key_values is a {type(cache).__name__}; a Mnemo model needs a MnemoCache")


def _targets(packed: Packed, tokens: Tensor, labels: Tensor | None, shifted: Tensor | None) -> Tensor | None:
    """Return packed targets (B, N): the next token of each token, -1 where there is no loss."""
    if shifted is None and labels is None:
        return None
    if shifted is None:
        shifted = nn.functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]  # type: ignore[arg-type]
    if shifted.shape != tokens.shape:
        raise MnemoError(f"labels {list(shifted.shape)} do not fit input_ids {list(tokens.shape)}")
    targets = packed.pack_values(shifted, IGNORED)
    return torch.where(targets == IGNORED, -1, targets)


def _mean(out: SegmentsOutput, targets: Tensor, num_items: Tensor | int | None) -> Tensor:
    """Return the mean loss per token plus auxiliary losses.

    `num_items`: targets in all batches of the update; auxiliary losses are then weighted by this batch's share of them.
    """
    assert out.nll is not None
    count = (targets >= 0).sum()
    if num_items is None:
        return out.nll / count.clamp(min=1) + out.aux
    num_items = num_items.to(out.nll.device) if isinstance(num_items, Tensor) else num_items
    return out.nll / num_items + out.aux * (count / num_items)
