"""Express our configuration as constructor arguments of other implementations; an error names what they lack."""

from __future__ import annotations

from dataclasses import fields, replace

from mnemo.errors import MnemoError, shorten
from mnemo.interop.convert import formats
from mnemo.interop.convert.infer_arguments import Arguments
from mnemo.interop.convert.nvidia import one_key_less
from mnemo.memory import Lookahead, MemoryTokens, Plan
from mnemo.model import InitConfig, ModelConfig
from mnemo.model.embedding import Bins
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Learned, Relative, Shaw, Sinusoidal

_KINDS = {Relative: 0, Shaw: 1, Sinusoidal: 2, Learned: 3}


def published_arguments(config: ModelConfig, segment: int, target: str) -> Arguments:
    """Return constructor arguments of the target; converting them back must give this configuration."""
    per_layer = isinstance(config.positions, Relative) and config.positions.biases_per_layer
    if per_layer and target not in ("hf", "tf"):
        raise MnemoError(f"u and v differ by layer, but '{target}' has one pair for all layers: use 'hf' or 'tf'")
    expressed = one_key_less(config) if target in ("nvidia", "tf") else config
    arguments = _authors(expressed, segment)
    if target == "hf":
        arguments = _hugging_face(arguments, config)
    elif target == "lamemo":
        arguments = arguments | {"attn_type": 3, "layer_norm_eps": config.norm_eps, **_lookahead(config)}
    elif target == "rmt" and isinstance(config.tokens, MemoryTokens):
        tokens = config.tokens
        arguments |= {"num_mem_tokens": tokens.num, "mem_at_end": tokens.write}
        arguments["read_mem_from_cache"] = tokens.memory_sees_cache
    elif target == "rmt":
        raise MnemoError("this model has no memory tokens: it cannot be saved as 'rmt'")
    if target not in ("hf", "tf"):
        arguments.pop("untie_r", None)  # not an argument of their constructors
    back = formats.named(target).config(arguments)
    _refuse_difference(comparable(config), comparable(back), target)
    return arguments


def _authors(config: ModelConfig, segment: int) -> Arguments:
    embedding, positions = config.embedding, config.positions
    if not isinstance(positions, (Relative, Shaw, Sinusoidal, Learned)):
        raise MnemoError(f"positions {type(positions).__name__} do not exist in the published code")
    memory = max(config.memory.lengths(config.num_layers))
    arguments: Arguments = {
        "n_token": config.vocab_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "d_model": config.dim,
        "d_head": config.head_dim,
        "d_inner": config.inner_dim,
        "dropout": config.dropout.input,
        "dropatt": config.dropout.attention,
        "tie_weight": embedding.tie_weights,
        "d_embed": embedding.dim or config.dim,
        "div_val": embedding.div_val,
        "tie_projs": list(embedding.ties()),
        "pre_lnorm": config.norm == "pre",
        "tgt_len": segment,
        "ext_len": 0,
        "mem_len": memory,
        "cutoffs": list(embedding.cutoffs),
        "same_length": config.same_length,
        "attn_type": _KINDS[type(positions)],
        "clamp_len": -1 if isinstance(positions, Learned) else positions.clamp or -1,
        "sample_softmax": -1,
    }
    if isinstance(positions, Shaw):
        arguments["tgt_len"] = positions.distances - memory
    elif isinstance(positions, Learned):
        arguments["tgt_len"] = positions.length - memory
    elif isinstance(positions, Relative):
        arguments["untie_r"] = positions.biases_per_layer
    return arguments


def _lookahead(config: ModelConfig) -> Arguments:
    long = config.memory.long
    return {"eps": long.epsilon} if isinstance(long, Lookahead) else {}


def _hugging_face(arguments: Arguments, config: ModelConfig) -> Arguments:
    shared = all(arguments["tie_projs"][1:])
    names = {"n_token": "vocab_size", "tie_weight": "tie_word_embeddings"}
    renamed = {names.get(name, name): value for name, value in arguments.items()}
    return {
        "model_type": "transfo-xl",
        "architectures": ["TransfoXLLMHeadModel"],
        **renamed,
        "adaptive": bool(arguments["cutoffs"]),
        "layer_norm_epsilon": config.norm_eps,
        "proj_share_all_but_first": shared,
    }


def comparable(config: ModelConfig) -> ModelConfig:
    """Return the configuration without training-only fields, and with equivalent choices made equal."""
    embedding = config.embedding
    projected = Bins.of(embedding, config.vocab_size, config.dim).projected
    ties = tuple(tied and projected for tied in embedding.ties())
    embedding = replace(embedding, dim=embedding.dim or config.dim, tie_projections=ties)
    memory = config.memory
    if memory.num_long is None:
        memory = Plan(long=memory.long)
    return replace(
        config,
        embedding=embedding,
        memory=memory,
        dropout=DropoutConfig(),
        init=InitConfig(),
        activation_penalty=0.0,
        temporal_penalty=0.0,
    )


def _refuse_difference(ours: ModelConfig, theirs: ModelConfig, target: str) -> None:
    for field in fields(ours):
        mine, there = getattr(ours, field.name), getattr(theirs, field.name)
        if mine != there:
            raise MnemoError(
                f"'{target}' cannot represent {field.name}: it is {shorten(str(mine), 160)}, "
                f"but would become {shorten(str(there), 160)}"
            )
