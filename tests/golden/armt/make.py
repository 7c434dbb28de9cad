"""Makes the files of this folder and of `armt-hf` again. Needs the authors' code, which tests do not:

    git clone https://github.com/RodkinIvan/associative-recurrent-memory-transformer theirs
    git -C theirs worktree add ../newest 067fb1058277f9beb6c21b28b0e17a9a6e083cf2
    git -C theirs worktree add ../paper aa145de9f50c08778e2579a2130b3db0d379bce5
    python tests/golden/armt/make.py newest paper

Their modules, imported from those folders, wrap small random backbones in float64: layers of Mnemo's own models here,
models of transformers in `armt-hf`. Each file holds the weights, tokens of several segments, and what their code
returns: the loss, logits of every segment, matrix and normaliser of every layer after every segment, all gradients.
Files `*-previous` have their option `sliding_window`, attention to the previous segment: with one row, since in others
their mask hides the first tokens of the previous segment, and for Llama with two segments, since from the third one on
their keys have wrong positions.
Names of weights are those of our models. `newest` is the last commit that changes their module, `paper` the commit of
the default branch, whose keys are not scaled to length one.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from mnemo.config import to_json
from mnemo.memory import XL, Associative, Plan, WriteTokens
from mnemo.memory.protocol import Call
from mnemo.model import Model, ModelConfig
from mnemo.model.positions import Rotary
from mnemo.ops import Causal

HERE = Path(__file__).resolve().parent
COMMITS = {"newest": "067fb1058277f9beb6c21b28b0e17a9a6e083cf2", "paper": "aa145de9f50c08778e2579a2130b3db0d379bce5"}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-correction": {"correction": False},
    "no-denominator": {"use_denom": False},
    "heads": {"n_heads": 2},
    "gating": {"gating": True},
    "one-token": {"num_mem_tokens": 1},
    "many-tokens": {"num_mem_tokens": 7},
}
"""Options of their memory cell, by the name of the file."""
SEGMENT, SEGMENTS, BATCH, VOCABULARY = 5, 4, 2, 11
NAMES = {"W_mq": "query", "W_mk": "key", "W_mv": "value", "W_mb": "strength"}


def import_theirs(folder: Path, name: str, package: str = "modeling_amt") -> Any:
    """Import one of their modules; packages that it only names are replaced by empty ones."""
    stand_ins = {"wandb": {}, "munch": {"Munch": dict}, "baselines.rwkv.language_modeling": {"RWKVModel": _NoModel}}
    for module, contents in stand_ins.items():
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        vars(sys.modules[module]).update(contents)
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(name, folder / package / "language_modeling.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.pop(0)
    return module


class _NoModel:
    """Stands for the RWKV model, which no file uses."""


class _Tupled(nn.Module):
    """A layer whose output is a tuple, as they expect it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        out = self.layer(hidden_states, *args, **kwargs)
        return out if isinstance(out, tuple) else (out,)


class _Single(nn.Module):
    """Their wrapper of a layer, called by keyword and with a tensor as its output, as transformers 5 expects it."""

    def __init__(self, wrapper: nn.Module) -> None:
        super().__init__()
        self.wrapper = wrapper

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.wrapper(hidden_states, *args, **kwargs)[0]


class _OurStage(nn.Module):
    """Their wrapper of one of our layers; the layer has no memory of its own."""

    def __init__(self, wrapper: nn.Module) -> None:
        super().__init__()
        self.wrapper = wrapper

    def forward(self, x: Tensor, state: Any, segment: Any) -> tuple[Tensor, Any]:
        return self.wrapper(hidden_states=x, state=state, segment=segment)[0], state


class _OurBackbone(nn.Module):
    """One of our models without memory, with the interface of a model of transformers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.config = types.SimpleNamespace(hidden_size=model.config.dim, n_embd=model.config.dim)
        self.states = model.init(BATCH)
        self.tables = {rows: model.tables(rows, self.states) for rows in range(1, 3 * SEGMENT)}

    def get_input_embeddings(self) -> Any:
        table, embed = self.model.embedding.tables[0], self.model.embedding

        class Embeddings:
            weight, embedding_dim = table, table.shape[1]

            def __call__(self, ids: Tensor) -> Tensor:
                return embed(ids)

        return Embeddings()

    def forward(self, inputs_embeds: Tensor, **_: Any) -> Any:
        rows = inputs_embeds.shape[1]
        call = Call(tables=self.tables[rows])
        hidden, _ = self.model.run(inputs_embeds, self.states, mask=Causal(), positions=torch.arange(rows), call=call)
        logits = self.model.softmax.logits(hidden, self.model.embedding)
        return types.SimpleNamespace(logits=logits, past_key_values=None, hidden_states=(hidden,))


def with_lists_as_cache(backbone: Any) -> None:
    """Let a model of transformers 5 take and return keys and values as lists, as they expect it."""
    forward = backbone.forward

    def call(past_key_values: Any = None, **options: Any) -> Any:
        cache: Any = DynamicCache(config=backbone.config)
        for index, (keys, values) in enumerate(past_key_values or []):
            cache.update(keys, values, index)
        out = forward(past_key_values=cache, **options)
        out.past_key_values = [[layer.keys, layer.values] for layer in cache.layers]
        return out

    backbone.forward = call


def wrap(
    theirs: Any, backbone: nn.Module, layers: str, single: type, options: dict[str, Any], previous: bool = False
) -> Any:
    """Their memory around a backbone, with random weights in place of zeros."""
    *path, last = layers.split(".")
    owner = backbone.get_submodule(".".join(path))
    found = getattr(owner, last)
    for index, layer in enumerate(found):
        found[index] = _Tupled(layer)
    cell = theirs.AssociativeMemoryCell(
        base_model=backbone, **{"num_mem_tokens": 3, "d_mem": 4, "layers_attr": layers, "wrap_pos": False} | options
    ).double()
    wrappers = list(cell.layers)
    cell.layers = nn.ModuleList(wrappers)
    for index, wrapped in enumerate(wrappers):
        found[index] = single(wrapped)
        nn.init.normal_(wrapped.W_mv.weight, 0.0, 0.5)
        nn.init.normal_(wrapped.W_mk.weight)
        nn.init.normal_(wrapped.W_mq.weight)
    cell.zero_mem()
    return theirs.AssociativeRecurrentWrapper(
        cell, segment_size=SEGMENT, max_n_segments=SEGMENTS, k2=-1, sliding_window=previous
    )


def run(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    """The loss, logits and states of their model, with its gradients in the parameters."""
    results: dict[str, Tensor] = {"tokens": tokens}
    cell, count = model.memory_cell, iter(range(SEGMENTS))

    def keep(module: Any, _: Any, out: Any) -> None:
        prefix = f"seg{next(count)}/"
        results[prefix + "logits"] = (out[0] if isinstance(out, tuple) else out)["logits"].detach().clone()
        if isinstance(out, tuple):  # memory tokens that are carried on
            results[prefix + "memory"] = out[1].detach().clone()
            return
        for index, layer in enumerate(cell.layers):
            results[f"{prefix}matrix.{index}"] = _with_heads(layer.W_mem, 4)
            if "z" in vars(layer):
                results[f"{prefix}normaliser.{index}"] = _with_heads(layer.z, 3)

    hook = cell.register_forward_hook(keep)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    out = model(tokens, labels=tokens, labels_mask=everywhere, attention_mask=everywhere.long())
    hook.remove()
    out["loss"].backward()
    return results | {"loss": out["loss"].detach()}


def _with_heads(state: Tensor, dims: int) -> Tensor:
    """Before they had heads, a state had no dimension for them."""
    return state.detach().clone() if state.dim() == dims else state.detach()[:, None].clone()


def memory_weights(cell: Any, prefix: str) -> dict[str, nn.Parameter]:
    """Weights of their memories, by our names."""
    found = {}
    for index, layer in enumerate(cell.layers):
        for theirs, ours in NAMES.items():
            for name, parameter in getattr(layer, theirs).named_parameters():
                found[prefix.format(index) + f"{ours}.{name}"] = parameter
    return found


def save(path: Path, kind: str, config: dict[str, Any], weights: dict[str, Any], results: dict[str, Tensor]) -> None:
    tensors = {f"weights/{name}": weight.detach().clone() for name, weight in weights.items()}
    tensors |= {f"grad/{name}": weight.grad.clone() for name, weight in weights.items() if weight.grad is not None}
    metadata = {"format": kind, "config": json.dumps(config, sort_keys=True)}
    save_file({name: tensor.contiguous() for name, tensor in (tensors | results).items()}, path, metadata)
    print(path.relative_to(HERE.parent), f"{path.stat().st_size / 1000:.0f} kB, loss {float(results['loss']):.6f}")


def our_options(options: dict[str, Any], version: str) -> Associative:
    """Our name for their options."""
    return Associative(
        key_dim=4,
        heads=options.get("n_heads", 1),
        normaliser=options.get("use_denom", True),
        correction=options.get("correction", True),
        gate="channel" if options.get("gating") else "head",
        unit_keys=version == "newest",
    )


def make_own(theirs: Any, version: str, name: str, options: dict[str, Any]) -> None:
    """A file for `mnemo parity`, around the layers of one of our models."""
    torch.manual_seed(7)
    config = ModelConfig(
        vocab_size=VOCABULARY,
        num_layers=2,
        dim=8,
        num_heads=2,
        head_dim=4,
        inner_dim=12,
        norm="pre",
        final_norm=True,
        positions=Rotary(),
        memory=Plan(long=XL(length=0)),
    )
    backbone = Model(replace(config, init=replace(config.init, std=0.3, norm_bias_std=0.1))).double()
    names = {parameter: key for key, parameter in backbone.named_parameters()}
    model = wrap(theirs, _OurBackbone(backbone), "model.stages", _OurStage, options)
    cell = model.memory_cell
    results = run(model, torch.randint(VOCABULARY, (BATCH, SEGMENT * SEGMENTS)))
    weights: dict[str, Any] = {
        key.replace(".layer.", ".attending.layer."): parameter for parameter, key in names.items()
    }
    weights |= {"memory_tokens.initial": cell.memory} | memory_weights(cell, "stages.{}.memory.")
    ours = replace(config, memory=Plan(long=our_options(options, version)), tokens=WriteTokens(num=len(cell.memory)))
    described = {"commit": COMMITS[version], "options": options, "segment": SEGMENT, "model": to_json(ours)}
    save(HERE / f"{name}.safetensors", "armt-golden-1", described, weights, results)


LLAMA = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=64,
    initializer_range=0.3,
    tie_word_embeddings=False,
)
GPT2 = GPT2Config(
    vocab_size=VOCABULARY,
    n_positions=32,
    n_embd=8,
    n_layer=2,
    n_head=2,
    initializer_range=0.3,
    attn_pdrop=0.0,
    embd_pdrop=0.0,
    resid_pdrop=0.0,
)
BACKBONES = {
    "llama": (LLAMA, LlamaForCausalLM, "model.layers"),
    "gpt2": (GPT2, GPT2LMHeadModel, "transformer.h"),
}


def make_hugging_face(theirs: Any, name: str, options: dict[str, Any], frozen: bool) -> None:
    """A file for the tests of `mnemo.hf`, around a model of transformers."""
    torch.manual_seed(8)
    previous = name.endswith("-previous")
    config, backbone, names, layers = small_backbone(name, previous)
    model = wrap(theirs, backbone, layers, _Single, options, previous)
    for parameter in names:
        parameter.requires_grad_(not frozen)
    cell = model.memory_cell
    results = run(model, some_tokens(name))
    weights: dict[str, Any] = {key: parameter for parameter, key in names.items()}
    weights |= {"memory_tokens.tokens.initial": cell.memory} | memory_weights(cell, "memory_tokens.layers.{}.")
    described = {
        "commit": COMMITS["newest"],
        "options": options,
        "segment": SEGMENT,
        "backbone": config.to_dict(),
        "associative": asdict(our_options(options, "newest")),
        "frozen": frozen,
        "attend_previous": previous,
    }
    save(HERE.parent / "armt-hf" / f"{name}.safetensors", "armt-golden-hf-1", described, weights, results)


def make_memory_tokens(theirs: Any, name: str) -> None:
    """A file with their memory tokens that are carried on (RMT), and attention to the previous segment."""
    torch.manual_seed(8)
    config, backbone, names, _ = small_backbone(name, True)
    cell = theirs.MemoryCell(backbone, 3).double()
    model = theirs.RecurrentWrapper(cell, segment_size=SEGMENT, max_n_segments=SEGMENTS, k2=-1, sliding_window=True)
    results = run(model, some_tokens(name))
    weights = {key: parameter for parameter, key in names.items()} | {"memory_tokens.initial": cell.memory}
    described = {"commit": COMMITS["newest"], "segment": SEGMENT, "backbone": config.to_dict(), "frozen": False}
    described |= {"associative": None, "attend_previous": True}
    save(HERE.parent / "armt-hf" / f"{name}.safetensors", "armt-golden-hf-1", described, weights, results)


def small_backbone(name: str, previous: bool) -> tuple[Any, Any, dict[nn.Parameter, str], str]:
    """The configuration of a backbone, a random one, our names of its weights, and where its layers are."""
    config, kind, layers = BACKBONES[name.split("-")[0]]
    backbone = kind(config).double()
    if previous:
        with_lists_as_cache(backbone)
    return config, backbone, {each: f"backbone.{key}" for key, each in backbone.named_parameters()}, layers


def some_tokens(name: str) -> Tensor:
    """Tokens (rows, columns) of a file; see the top of this module."""
    rows = 1 if name.endswith("-previous") else BATCH
    segments = 2 if name == "llama-previous" else SEGMENTS
    return torch.randint(VOCABULARY, (rows, SEGMENT * segments))


def main() -> None:
    newest, paper = Path(sys.argv[1]), Path(sys.argv[2])
    theirs = import_theirs(newest, "armt_newest")
    for name, options in OPTIONS.items():
        make_own(theirs, "newest", name, options)
    older = import_theirs(paper, "armt_paper")
    make_own(older, "paper", "paper", {})
    make_own(older, "paper", "paper-no-correction", {"correction": False})
    make_hugging_face(theirs, "llama", {}, False)
    make_hugging_face(theirs, "gpt2", {"n_heads": 2}, False)
    make_hugging_face(theirs, "llama-frozen", {}, True)
    make_hugging_face(theirs, "llama-previous", {}, False)
    make_hugging_face(theirs, "gpt2-previous", {}, False)
    make_memory_tokens(import_theirs(newest, "rmt_newest", "modeling_rmt"), "gpt2-tokens-previous")


if __name__ == "__main__":
    main()
