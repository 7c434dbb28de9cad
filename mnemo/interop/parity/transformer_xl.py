"""Compare with reference files of Transformer-XL models: the authors' PyTorch code and Hugging Face's.

Keys: `param/NAME`, `seg{k}/...`, `grad/NAME`. Shapes: B batch, L segment, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mnemo.errors import MnemoError, unknown
from mnemo.interop.convert import transformer_xl as convert
from mnemo.interop.convert.tensor_map import TensorMap
from mnemo.interop.parity.reference import Reference, as_tensor
from mnemo.interop.parity.segment_runner import SegmentRunner, Setting, refuse_defects, settings
from mnemo.interop.parity.weights import check_frequencies, check_gradients, require_float64
from mnemo.model import Model, ModelConfig, Output
from mnemo.model.embedding import Bins


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Conventions of one implementation's files."""

    tokens: str
    """Key of a segment's token ids."""
    time_first: bool
    """(L, B) instead of (B, L)."""
    stores_top: bool
    """Its memory also holds the last layer's outputs, which are never used."""
    prefix: str
    """Prefix of the names of parameters inside the transformer."""
    config: Callable[[Mapping[str, Any]], ModelConfig]
    weights: Callable[[Mapping[str, Tensor], ModelConfig], dict[str, Tensor]]
    tensor_map: Callable[[Model], TensorMap]

    def rows(self, tensor: Tensor) -> Tensor:
        """Convert their order of dimensions to (B, L), or back."""
        return tensor.transpose(0, 1).contiguous() if self.time_first else tensor


AUTHORS = Dialect(
    tokens="input",
    time_first=True,
    stores_top=True,
    prefix="",
    config=convert.config_from_authors,
    weights=convert.weights_from_authors,
    tensor_map=convert.authors_tensor_map,
)
HUGGING_FACE = Dialect(
    tokens="input_ids",
    time_first=False,
    stores_top=False,
    prefix="transformer.",
    config=convert.config_from_hugging_face,
    weights=convert.weights_from_hugging_face,
    tensor_map=convert.hugging_face_tensor_map,
)


def check_authors(reference: Reference) -> None:
    _check(reference, AUTHORS, reference.config)


def check_hugging_face(reference: Reference) -> None:
    _check(reference, HUGGING_FACE, reference.setting("hf_config", dict))


def _check(reference: Reference, dialect: Dialect, config: Mapping[str, Any]) -> None:
    count = reference.setting("n_segments", int)
    if count < 1 or len(reference.config.get("mean_loss", [0] * count)) != count:
        raise MnemoError(f"configuration: n_segments {count} does not fit")
    steps = settings(config, reference.config.get("resets", {}), count)
    refuse_defects(config.get("attn_type", 0), bool(config.get("pre_lnorm", False)), steps)
    model = load(reference, dialect, config)
    start = reference.config.get("initial_mems", "empty")
    if start not in ("empty", "zeros"):
        raise unknown("initial memory", str(start), ("empty", "zeros"))
    runner = SegmentRunner(model, reference.setting("batch", int), steps[0], zeros=start == "zeros")
    # Gradients stay enabled in all segments, so that a memory that wrongly passes gradient is detected.
    losses = [_check_segment(reference, dialect, runner, index, step) for index, step in enumerate(steps)]
    losses[-1].mean().backward()
    check_gradients(reference, "grad/", runner.model, dialect.tensor_map(runner.model))


def load(reference: Reference, dialect: Dialect, config: Mapping[str, Any]) -> Model:
    """Load the file's model as ours."""
    parameters = require_float64(reference.group("param/"))
    ours = dialect.config(config)
    model = convert.empty_model(ours)
    model.load_state_dict(dialect.weights(parameters, ours), assign=True)
    check_frequencies(reference, f"param/{dialect.prefix}pos_emb.inv_freq", ours.dim)
    return model.eval()


def _check_segment(reference: Reference, dialect: Dialect, runner: SegmentRunner, index: int, step: Setting) -> Tensor:
    """Read a segment, compare all its values in the file, and return its losses (B, L)."""
    key = f"seg{index}/"
    tokens = dialect.rows(reference.ids(f"{key}{dialect.tokens}"))
    targets = dialect.rows(reference.ids(f"{key}target"))
    if len(tokens) != len(targets) or len(tokens) != len(runner.top) or tokens.shape[1] < targets.shape[1]:
        raise MnemoError(f"'{key}{dialect.tokens}' and '{key}target' do not fit together")
    out = runner.read(tokens, step)
    loss = runner.model.loss(out, targets)
    reference.check("losses", f"{key}loss", dialect.rows(loss))
    if "mean_loss" in reference.config:
        mean = as_tensor(reference.setting("mean_loss", list)[index])
        reference.compare("losses", f"mean_loss of {key[:-1]}", loss.mean(), mean)
    if f"{key}loss_authors_order" in reference:
        by_bin = sorted_by_bin(dialect.rows(loss), dialect.rows(targets), runner.model)
        reference.check("losses", f"{key}loss_authors_order", by_bin)
    if f"{key}mems" in reference:
        reference.check("memories", f"{key}mems", runner.memory(dialect.stores_top))
    _check_hugging_face_outputs(reference, key, runner.model, out, tokens)
    return loss


def _check_hugging_face_outputs(reference: Reference, key: str, model: Model, out: Output, tokens: Tensor) -> None:
    if f"{key}log_probs" in reference:
        reference.check("log_probs", f"{key}log_probs", torch.log_softmax(model.logits(out), -1))
    if f"{key}hf_losses" not in reference and f"{key}hf_loss" not in reference:
        return
    targets = tokens[:, 1:]
    loss = model.loss(Output(out.hidden[:, :-1], {}), targets)
    if f"{key}hf_losses" in reference:
        reference.check("hf_losses", f"{key}hf_losses", sorted_by_bin(loss, targets, model))
    if f"{key}hf_loss" in reference:
        reference.check("hf_losses", f"{key}hf_loss", loss[loss != 0].mean().view(1))


def sorted_by_bin(loss: Tensor, targets: Tensor, model: Model) -> Tensor:
    """Return losses in the order of the published softmax: sorted by bin, in the shape of the targets."""
    config = model.config
    edges = Bins.of(config.embedding, config.vocab_size, config.dim).edges[1:-1]
    bins = torch.bucketize(targets.reshape(-1).contiguous(), torch.tensor(edges, dtype=targets.dtype), right=True)
    return loss.reshape(-1)[bins.argsort(stable=True)].view(loss.shape)
