"""An associative memory (ARMT) around models of transformers: the authors' numbers, decoding, saving, gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.golden import GOLDEN
from helpers.tolerances import PARITY, assert_close
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from mnemo.errors import MnemoError
from mnemo.hf import add_memory, load_adapter, save_adapter
from mnemo.hf.memory_tokens.carried import TokensAndPrevious
from mnemo.hf.memory_tokens.previous_segment import LayerStates
from mnemo.interop.parity.reference import Reference
from mnemo.memory import Associative
from mnemo.memory.state import leaves

FILES = sorted((GOLDEN / "armt-hf").glob("*.safetensors"))


def wrapped_as_published(reference: Reference) -> Any:
    """The model of a reference file, with its weights."""
    config = reference.config
    backbone = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config["backbone"])).double()
    weights = reference.group("weights/")
    tokens = next(len(weight) for name, weight in weights.items() if name.endswith("initial"))
    options: dict[str, Any] = {"bptt": None, "attend_previous": config.get("attend_previous", False)}
    if config["associative"] is not None:
        options |= {"kind": "associative", "associative": Associative(**config["associative"])}
    model = add_memory(backbone, tokens, config["segment"], **options)
    lacking, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown and all(name.endswith("lm_head.weight") for name in lacking)  # GPT-2's is tied
    if config["frozen"]:
        model.backbone.requires_grad_(False)
    return model.eval()


def published_names(memory: Any) -> dict[str, Tensor]:
    """The parts of a memory by their names in reference files."""
    if isinstance(memory, TokensAndPrevious):
        return {"memory": memory.tokens}
    layers = memory.memories if isinstance(memory, LayerStates) else memory
    named = [
        {f"matrix.{number}": each.matrix, f"normaliser.{number}": each.normaliser} for number, each in enumerate(layers)
    ]
    return {name: leaf for part in named for name, leaf in part.items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_parity_with_the_authors_module(path: Path) -> None:
    reference = Reference.open(path)
    model = wrapped_as_published(reference)
    tokens = reference.ids("tokens")
    segment = reference.setting("segment", int)
    out = model(input_ids=tokens, labels=tokens)
    reference.check("losses", "loss", out.loss)
    out.loss.backward()
    state = None
    for number, scores in enumerate(out.logits.split(segment, 1)):
        reference.check("logits", f"seg{number}/logits", scores)
        read = model(input_ids=tokens[:, number * segment : (number + 1) * segment], memory=state)
        state = read.memory
        for name, leaf in published_names(state).items():
            reference.check("states", f"seg{number}/{name}", leaf)
    for name, parameter in model.named_parameters():
        if f"grad/{name}" in reference:
            reference.check("gradients", f"grad/{name}", parameter.grad)
        else:
            assert parameter.grad is None
    reference.refuse_leftovers()
    assert set(reference.errors) == {"losses", "logits", "states", "gradients"}
    assert max(reference.errors.values()) <= PARITY, reference.worst


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = dict(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
    config = LlamaConfig(**sizes | changes, eos_token_id=None, bos_token_id=None, pad_token_id=0)  # type: ignore[arg-type]
    return LlamaForCausalLM(config).double().eval()


def build(backbone: Any = None, associative: Associative | None = None, **options: Any) -> Any:
    """A small model whose memory is not empty: the projection of values is not zero."""
    chosen = {"tokens": 3, "segment": 5, "bptt": None} | options
    model: Any = add_memory(backbone or llama(), **chosen, kind="associative", associative=associative)
    torch.manual_seed(1)
    for layer in model.memory_tokens.layers:
        torch.nn.init.normal_(layer.value.weight)
    return model


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(1, 50, (rows, length), generator=torch.Generator().manual_seed(3))


def assert_same_memory(actual: Any, expected: Any) -> None:
    for (name, leaf), (_, other) in zip(leaves(actual), leaves(expected), strict=True):
        assert_close(leaf, other, msg=name)


@pytest.mark.parametrize("backward", ["plain", "checkpoint"])
def test_a_new_memory_changes_nothing(backward: str) -> None:
    backbone, text = llama(), tokens(2, 13)
    apart = torch.cat([backbone(input_ids=part).logits for part in text.split(5, 1)], 1)
    model = add_memory(backbone, 3, 5, None, kind="associative", backward=backward).eval()  # type: ignore[arg-type]
    assert_close(model(input_ids=text).logits, apart)
    other = build(llama())
    assert not torch.allclose(other(input_ids=text).logits, apart)
    assert_close(other(input_ids=text[:, :5]).logits, apart[:, :5])


def test_a_row_of_a_padded_batch_equals_the_row_alone() -> None:
    model, text = build(), tokens(3, 14)
    mask = torch.ones_like(text)
    mask[0, :4], mask[2, :9] = 0, 0
    out = model(input_ids=text, attention_mask=mask)
    for row, start in ((0, 4), (1, 0), (2, 9)):
        alone = model(input_ids=text[row : row + 1, start:])
        assert_close(out.logits[row : row + 1, start:], alone.logits)
        for (_, leaf), (_, other) in zip(leaves(out.memory), leaves(alone.memory), strict=True):
            assert_close(leaf[row : row + 1], other)


@pytest.mark.parametrize("beams", [1, 3])
def test_generated_text_is_that_of_reading_everything_again(beams: int) -> None:
    model, prompt = build(), tokens(2, 7)
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 11, "do_sample": False, "num_beams": beams}
    generated = model.generate(prompt, **options)
    assert torch.equal(generated, model.generate(prompt, **options, use_cache=False))
    memory = model(input_ids=tokens(2, 10)).memory
    continued = model.generate(prompt, **options, memory=memory)
    assert not torch.equal(continued, generated)
    scores = model(input_ids=continued, memory=memory).logits
    if beams == 1:
        assert torch.equal(scores[:, 6:-1].argmax(-1), continued[:, 7:])


def test_a_text_is_read_saved_loaded_and_continued(tmp_path: Path) -> None:
    model, text = build(), tokens(1, 23)
    whole = model(input_ids=text).logits
    memory = model.read(text[:, :17])
    model.save_memory(tmp_path / "memory.safetensors", memory)
    loaded = model.load_memory(tmp_path / "memory.safetensors")
    assert_same_memory(loaded.state, memory.state)
    assert_close(model(input_ids=text[:, 17:], memory=loaded).logits[:, -6:], whole[:, -6:])
    generated = model.generate(memory=loaded, max_new_tokens=6, do_sample=False)
    prompt = text[:, :17]
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
    assert torch.equal(generated, expected[:, 17:])
    with pytest.raises(MnemoError, match="another model"):
        build(associative=Associative(correction=False)).load_memory(tmp_path / "memory.safetensors")


def test_a_memory_of_another_model_is_refused() -> None:
    model, text = build(), tokens(2, 5)
    memory = model(input_ids=text).memory
    for wrong in (torch.zeros(2, 3, 16), memory[:1], ()):
        with pytest.raises(MnemoError, match="needs 2 layers"):
            model(input_ids=text, memory=wrong)
    with pytest.raises(MnemoError, match="for 1 rows"):
        model(input_ids=text[:1], memory=memory)


def gradients(model: Any, text: Tensor) -> dict[str, Tensor]:
    model.train()
    model.zero_grad()
    model(input_ids=text, labels=text).loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def test_gradients_of_all_windows() -> None:
    text = tokens(2, 20)
    plain = gradients(build(backward="plain"), text)
    assert all(float(gradient.abs().max()) > 0 for gradient in plain.values())
    assert set(plain) == {name for name, _ in build().named_parameters()}
    windows: tuple[dict[str, Any], ...] = ({"backward": "checkpoint"}, {"bptt": 3, "window": "tumbling"}, {"bptt": 3})
    for options in windows:
        for name, gradient in gradients(build(**options), text).items():
            assert_close(gradient, plain[name], msg=f"{options} {name}")
    initial, cut = "memory_tokens.tokens.initial", gradients(build(bptt=0), text)
    assert "memory_tokens.layers.0.key.weight" not in cut  # nothing written is read within one segment
    assert not torch.allclose(gradients(build(bptt=1), text)[initial], plain[initial])


def test_a_frozen_backbone_trains_its_memory() -> None:
    model = build()
    model.backbone.requires_grad_(False)
    found = gradients(model, tokens(2, 15))
    assert set(found) == {f"memory_tokens.{name}" for name, _ in model.memory_tokens.named_parameters()}


def test_folders_and_adapters(tmp_path: Path) -> None:
    text = tokens(2, 13)
    llama().save_pretrained(tmp_path / "backbone")
    model = build(
        AutoModelForCausalLM.from_pretrained(tmp_path / "backbone", dtype=torch.float64), Associative(heads=2)
    )
    expected = model.eval()(input_ids=text).logits
    model.save_pretrained(tmp_path / "folder")
    folder = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.float64)
    assert folder.config.associative_memory() == Associative(heads=2)
    assert torch.equal(folder(input_ids=text).logits, expected)
    save_adapter(model, tmp_path / "adapter")
    assert torch.equal(load_adapter(tmp_path / "adapter", llama()).eval()(input_ids=text).logits, expected)


def test_lora_trains_a_copy_of_the_memory(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, text = build(), tokens(2, 13)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["memory_tokens"])
    adapted = peft.get_peft_model(model, config)
    adapted.train()
    adapted(input_ids=text, labels=text).loss.backward()
    trained = {name for name, weight in adapted.named_parameters() if weight.grad is not None}
    assert any("modules_to_save.default.layers.0.value.weight" in name for name in trained)
    with torch.no_grad():
        for layer in adapted.base_model.model.memory_tokens.layers:
            layer.value.weight.mul_(2)
    adapted.eval()
    save_adapter(adapted, tmp_path / "adapter")
    again = load_adapter(tmp_path / "adapter", llama())
    assert torch.equal(again.eval()(input_ids=text).logits, adapted(input_ids=text).logits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"mask": "block"}, "causal"),
        ({"associative": Associative(length=3)}, "length"),
        ({"associative": Associative(heads=4, key_dim=4)}, None),
        ({"associative": Associative(heads=3, key_dim=6)}, "do not divide the width"),
        ({"kind": "tokens", "associative": Associative()}, 'kind="associative"'),
        ({"kind": "matrix"}, "kind"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str | None) -> None:
    chosen = {"kind": "associative", "tokens": 3, "segment": 5} | options
    if message is None:
        add_memory(llama(), **chosen)
        return
    with pytest.raises(MnemoError, match=message):
        add_memory(llama(), **chosen)


def test_layers_are_not_computed_again_without_their_memory() -> None:
    with pytest.raises(ValueError, match="gradient checkpointing"):
        build().gradient_checkpointing_enable()
    backbone = llama()
    backbone.gradient_checkpointing_enable()
    with pytest.raises(MnemoError, match='backward="checkpoint"'):
        add_memory(backbone, 3, 5, kind="associative")


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_keeps_wide_memories(autocast: bool) -> None:
    model, text = build(llama().to(torch.float32 if autocast else torch.bfloat16)), tokens(2, 15)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = model.train()(input_ids=text, labels=text)
    out.loss.backward()
    assert {leaf.dtype for _, leaf in leaves(out.memory)} == {torch.float32}
    assert all(bool(weight.grad.isfinite().all()) for _, weight in model.named_parameters())
    wide = build(llama())(input_ids=text, labels=text).loss
    assert_close(out.loss.bfloat16(), wide.bfloat16())
