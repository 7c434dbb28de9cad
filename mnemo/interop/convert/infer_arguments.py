"""Infer a published model's constructor arguments from the shapes of its weights.

Arguments that shapes do not determine (memory length, clamp, pre- or post-norm, bins of a single table, heads of
absolute positions) must be given; an error names the flag. Given arguments are checked against the shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mnemo.errors import MnemoError

Tensors = Mapping[str, Tensor]
Arguments = dict[str, Any]
"""Constructor arguments of the authors' `MemTransformerLM`, by their names."""

FLAGS = {
    "mem_len": "--memory",
    "tgt_len": "--segment",
    "n_head": "--num-heads",
    "clamp_len": "--clamp",
    "cutoffs": "--cutoffs",
    "same_length": "--same-length",
    "pre_lnorm": "--norm",
    "mem_at_end": "--mem-at-end",
}
"""The command-line flag of an argument, if it has one."""


SETTINGS = {
    "pre_lnorm": "--norm post (or pre)",
    "clamp_len": "--clamp 0 (no clamp; or its length)",
    "same_length": "--no-same-length (or --same-length)",
}
"""Settings that change the results of the same weights, and their flags with the constructor's default first."""


def count(tensors: Tensors, pattern: str) -> int:
    """Count the names `pattern.format(0)`, `pattern.format(1)`, ... up to the first missing one."""
    found = 0
    while pattern.format(found) in tensors:
        found += 1
    return found


def shape(tensors: Tensors, name: str, dims: int) -> tuple[int, ...]:
    """Return the shape of a required tensor, which must have `dims` dimensions."""
    if name not in tensors:
        raise MnemoError(f"parameter '{name}' is missing")
    found = tuple(tensors[name].shape)
    if len(found) != dims:
        raise MnemoError(f"parameter '{name}' has shape {list(found)}; expected {dims} dimensions")
    return found


def check_types(arguments: Mapping[str, Any]) -> None:
    """Raise an error if an argument of a configuration has the wrong type."""
    for kind, names in _TYPES.items():
        for name in names:
            value = arguments.get(name)
            if value is not None and (not isinstance(value, kind) or kind is int and isinstance(value, bool)):
                raise MnemoError(f"'{name}' of the configuration is {value!r}")
    if not all(type(cutoff) is int for cutoff in arguments.get("cutoffs") or ()):
        raise MnemoError(f"'cutoffs' of the configuration are {arguments['cutoffs']!r}")
    if not all(isinstance(tied, (bool, int, type(None))) for tied in arguments.get("tie_projs") or ()):
        raise MnemoError(f"'tie_projs' of the configuration are {arguments['tie_projs']!r}")


_TYPES: dict[Any, tuple[str, ...]] = {
    int: (
        *("n_token", "vocab_size", "n_layer", "n_head", "d_model", "d_head", "d_inner", "d_embed", "div_val"),
        *("mem_len", "tgt_len", "ext_len", "clamp_len", "attn_type", "num_mem_tokens", "sample_softmax"),
    ),
    (bool, int): ("same_length", "pre_lnorm", "untie_r", "tie_weight", "tie_word_embeddings", "mem_at_end"),
    (int, float): ("dropout", "dropatt", "layer_norm_epsilon", "layer_norm_eps", "eps"),
    (list, tuple): ("cutoffs", "tie_projs"),
}


def arguments_of_shapes(tensors: Tensors, given: Mapping[str, Any]) -> Arguments:
    """Infer arguments from weights with the authors' names; `given` is used where shapes do not determine them."""
    attention = "layers.0.dec_attn."
    fused = f"{attention}qkv_net.weight" in tensors
    rows, dim = shape(tensors, f"{attention}{'qkv_net' if fused else 'q_net'}.weight", 2)
    arguments = {
        "n_layer": count(tensors, "layers.{}.pos_ff.CoreNet.0.weight"),
        "d_model": dim,
        "d_inner": shape(tensors, "layers.0.pos_ff.CoreNet.0.weight", 2)[0],
        **_tables(tensors, given, dim),
        **_ties(tensors, given),
    }
    return arguments | _heads(tensors, given, rows // (3 if fused else 1))


def _heads(tensors: Tensors, given: Mapping[str, Any], width: int) -> Arguments:
    """Infer heads and the kind of positions; the size of a position table also gives the context length."""
    if "r_emb" in tensors and tensors["r_emb"].dim() == 4:
        kind, (_, rows, heads, head_dim) = 1 if "r_bias" in tensors else 3, tensors["r_emb"].shape
        return {"attn_type": kind, "n_head": heads, "d_head": head_dim, **_lengths(given, rows)}
    if "r_w_bias" in tensors:
        heads, head_dim = shape(tensors, "r_w_bias", 2)
        return {"attn_type": 0, "n_head": heads, "d_head": head_dim}
    heads = required_argument(given, "n_head", "absolute positions leave no trace of the number of heads")
    if heads < 1 or width % heads:
        raise MnemoError(f"--num-heads {heads} does not fit the weights: their queries have {width} features")
    return {"attn_type": 2, "n_head": heads, "d_head": width // heads}


def _lengths(given: Mapping[str, Any], rows: int) -> Arguments:
    memory = required_argument(given, "mem_len", "the weights do not say it")
    segment = given.get("tgt_len", rows - memory - given.get("ext_len", 0))
    extended = rows - memory - segment
    if segment < 1 or extended < 0:
        raise MnemoError(f"--memory {memory} and --segment {segment} do not fit the table of {rows} positions")
    return {"tgt_len": segment, "ext_len": extended}


def _tables(tensors: Tensors, given: Mapping[str, Any], dim: int) -> Arguments:
    name = "word_emb.emb_layers.{}.weight"
    tables = [shape(tensors, name.format(i), 2) for i in range(max(1, count(tensors, name)))]
    rows, widths = [table[0] for table in tables], [table[1] for table in tables]
    arguments: Arguments = {"n_token": sum(rows), "d_embed": widths[0], "div_val": 1, "cutoffs": []}
    if len(tables) > 1:
        arguments["cutoffs"] = [sum(rows[: i + 1]) for i in range(len(rows) - 1)]
        arguments["div_val"] = narrowing(widths, given.get("div_val"))
    elif "word_emb.emb_projs.0" in tensors and widths[0] == dim:
        arguments["div_val"] = 2  # of a single bin: it has a projection where none would be needed
    clusters = _clusters(tensors)
    if clusters and len(tables) == 1:
        arguments["cutoffs"] = _single_table_cutoffs(given, clusters, sum(rows))
    return arguments


def narrowing(widths: list[int], given_value: int | None = None) -> int:
    """Return the div_val that gives these widths. Several may fit; the given one is tried first."""
    for value in (*([given_value] if given_value else []), *range(2, widths[0] + 1)):
        if [widths[0] // value**i for i in range(len(widths))] == widths:
            return value
    raise MnemoError(f"the embedding tables have widths {widths}, which no div_val gives")


def _clusters(tensors: Tensors) -> int:
    """Return the number of softmax bins after the first."""
    return shape(tensors, "crit.cluster_weight", 2)[0] if "crit.cluster_weight" in tensors else 0


def _single_table_cutoffs(given: Mapping[str, Any], clusters: int, vocab_size: int) -> list[int]:
    cutoffs = list(required_argument(given, "cutoffs", f"one table holds all {clusters + 1} bins of the softmax"))
    fit = len(cutoffs) == clusters and cutoffs == sorted(set(cutoffs)) and 0 < cutoffs[0] <= cutoffs[-1] < vocab_size
    if not fit:
        raise MnemoError(
            f"--cutoffs {','.join(map(str, cutoffs))} does not fit the weights: {clusters} ascending numbers below "
            f"the vocabulary size {vocab_size:,} are needed"
        )
    return cutoffs


def _ties(tensors: Tensors, given: Mapping[str, Any]) -> Arguments:
    """Infer which softmax weights are tied to the embedding: those that are equal or absent.

    The first bin's projection is untied in every published model; a file without it is incomplete.
    """
    weights, projections = "word_emb.emb_layers.{}.weight", "word_emb.emb_projs.{}"
    tied = all(_same(tensors, f"crit.out_layers.{i}.weight", weights.format(i)) for i in range(count(tensors, weights)))
    if given.get("tie_weight") is False and "crit.out_layers.0.weight" in tensors:
        tied = False  # two separate tables that are still equal, as before training
    shared = count(tensors, projections)
    given_value = is_tied(*(given.get("tie_projs") or [False])[:1])
    ties = []
    for i in range(_clusters(tensors) + 1 if shared else 0):
        name, theirs = f"crit.out_projs.{i}", projections.format(min(i, shared - 1))
        ties.append(given_value if i == 0 and name not in tensors else _same(tensors, name, theirs))
    return {"tie_weight": tied, "tie_projs": ties or [False]}


def is_tied(entry: Any) -> bool:
    """Return whether an entry of their `tie_projs` means tied; False, None, 0 and -1 do not."""
    return entry is not None and entry > 0


def _same(tensors: Tensors, name: str, other: str) -> bool:
    if name not in tensors:
        return True
    return tensors[name].shape == tensors[other].shape and torch.equal(tensors[name], tensors[other])


def required_argument(given: Mapping[str, Any], term: str, why: str) -> Any:
    """Return an argument that only the user can know; an error names its flag if it is missing."""
    if given.get(term) is None:
        raise MnemoError(f"{FLAGS[term]} is needed: {why}")
    return given[term]


def require_settings(given: Mapping[str, Any]) -> None:
    """Raise an error that names the flags of settings which shapes do not show and no configuration gives.

    A configuration (recognised by `d_model`, which has no flag) may leave them out: the constructor has defaults.
    """
    missing = [flag for name, flag in SETTINGS.items() if given.get(name) is None]
    if missing and "d_model" not in given:
        raise MnemoError(f"the weights do not say how they were trained; also give {', '.join(missing)}")


def merge(inferred: Mapping[str, Any], given: Mapping[str, Any]) -> Arguments:
    """Merge both; where they disagree, an error states the value that the weights have."""
    for term, value in inferred.items():
        given_value = given.get(term)
        if given_value is None or term == "tie_projs" or term == "div_val" and not inferred["cutoffs"]:
            continue  # ties follow from the weights; div_val has no effect on a single bin
        if given_value != value:
            name = FLAGS.get(term, f"'{term}' of the configuration")
            raise MnemoError(f"{name} {given_value} does not fit the weights, which have {value}")
    return {**given, **inferred}
