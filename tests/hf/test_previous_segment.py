"""Attention to the previous segment around models of transformers: true distances, decoding, files, gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hf_backbones import CAUSAL, bert, gpt2, llama, tokens
from helpers.marks import few
from helpers.tolerances import assert_close
from torch import Tensor
from transformers import AutoModelForCausalLM, BloomConfig, BloomForCausalLM, DynamicCache

from mnemo.errors import MnemoError
from mnemo.hf import add_memory, export_step, load_adapter, save_adapter, step_state
from mnemo.memory import Associative
from mnemo.memory.state import leaves

SEGMENT = 5
MEMORIES: dict[str, dict[str, Any]] = {
    "none": {"tokens": 0},
    "tokens": {"tokens": 3},
    "block": {"tokens": 3, "mask": "block"},
    "overlap": {"tokens": 3, "start": "overlap"},
    "fixed": {"tokens": 3, "positions": "fixed"},
    "associative": {"tokens": 3, "kind": "associative", "associative": Associative(key_dim=4)},
}
EVERY_MEMORY = pytest.mark.parametrize("memory", MEMORIES)
SOME = ("none", "tokens", "associative")
SOME_MEMORIES = pytest.mark.parametrize("memory", few(MEMORIES, lambda memory: memory in SOME))


def seeded(family: str = "llama") -> Any:
    torch.manual_seed(0)
    return CAUSAL[family]()


def build(memory: str = "none", backbone: Any = None, **options: Any) -> Any:
    backbone = seeded().double() if backbone is None else backbone
    chosen = {"segment": SEGMENT, "bptt": None, "attend_previous": True} | MEMORIES[memory] | options
    model: Any = add_memory(backbone.eval(), **chosen)
    torch.manual_seed(1)
    for name, weight in model.memory_tokens.named_parameters():
        if name.endswith("value.weight"):  # zero at first
            torch.nn.init.normal_(weight)
    return model


def bloom() -> Any:
    torch.manual_seed(0)
    return BloomForCausalLM(BloomConfig(vocab_size=60, hidden_size=16, n_layer=2, n_head=2)).double().eval()


@pytest.mark.parametrize("family", CAUSAL)
def test_two_segments_are_read_as_by_the_backbone_at_once(family: str) -> None:
    backbone, text = seeded(family).double().eval(), tokens(2, 2 * SEGMENT)
    assert_close(build(backbone=backbone)(input_ids=text).logits, backbone(input_ids=text).logits)


def in_absolute_positions(backbone: Any, text: Tensor) -> Tensor:
    """Logits of segments that attend to the keys of the segment before, at positions that count through the text."""
    kept, logits = None, []
    for begin in range(0, text.shape[1], SEGMENT):
        cache: Any = DynamicCache(config=backbone.config)
        for index, (keys, values) in enumerate(kept or ()):
            cache.update(keys, values, index)
        part = text[:, begin : begin + SEGMENT]
        positions = torch.arange(begin, begin + part.shape[1])[None].expand(len(text), -1)
        logits.append(backbone(input_ids=part, position_ids=positions, past_key_values=cache, use_cache=True).logits)
        kept = [(layer.keys[:, :, -SEGMENT:], layer.values[:, :, -SEGMENT:]) for layer in cache.layers]
    return torch.cat(logits, 1)


@pytest.mark.parametrize("family", [name for name in CAUSAL if name != "gpt2"])
def test_rotary_distances_are_true_in_every_segment(family: str) -> None:
    backbone, text = seeded(family).float().eval(), tokens(2, 4 * SEGMENT + 2)  # angles are single precision anyway
    expected = in_absolute_positions(backbone, text)
    assert_close(build(backbone=backbone)(input_ids=text).logits, expected)
    separate = add_memory(backbone, 0, SEGMENT)(input_ids=text).logits
    assert not torch.allclose(separate[:, SEGMENT:], expected[:, SEGMENT:], atol=1e-3)


def test_relative_positions_need_no_change() -> None:
    backbone, text = bloom(), tokens(2, 2 * SEGMENT)
    model = build(backbone=backbone)
    assert_close(model(input_ids=text).logits, backbone(input_ids=text).logits)


@SOME_MEMORIES
@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.thorough)])
def test_generated_text_is_that_of_reading_everything_again(family: str, memory: str) -> None:
    model, prompt = build(memory, seeded(family).double()), tokens(2, 7)
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 11, "do_sample": False}
    generated = model.generate(prompt, **options)
    assert torch.equal(generated, model.generate(prompt, **options, use_cache=False))
    beams = model.generate(prompt, **options, num_beams=3)
    assert torch.equal(beams, model.generate(prompt, **options, num_beams=3, use_cache=False))


@EVERY_MEMORY
@pytest.mark.parametrize("align", ["left", "right"])
def test_a_padded_batch_equals_its_rows(memory: str, align: str) -> None:
    model, text = build(memory, align=align), tokens(3, 14)
    mask = torch.ones_like(text)
    mask[0, :4], mask[2, :9] = 0, 0
    out = model(input_ids=text, attention_mask=mask)
    for row, start in ((0, 4), (1, 0), (2, 9)):
        alone = model(input_ids=text[row : row + 1, start:])
        assert_close(out.logits[row : row + 1, start:], alone.logits)
        for (name, leaf), (_, other) in zip(leaves(out.memory), leaves(alone.memory), strict=True):
            assert_close(leaf[row : row + 1], other, msg=name)


@SOME_MEMORIES
def test_a_text_is_read_saved_loaded_and_continued(memory: str, tmp_path: Path) -> None:
    model, text = build(memory), tokens(1, 23)
    whole = model(input_ids=text).logits
    read = model.read(text[:, :17])
    model.save_memory(tmp_path / "memory", read)
    loaded = model.load_memory(tmp_path / "memory")
    assert_close(model(input_ids=text[:, 17:], memory=loaded).logits[:, -6:], whole[:, -6:])
    prompt = text[:, :17]
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
    assert torch.equal(model.generate(memory=loaded, max_new_tokens=6, do_sample=False), expected[:, 17:])
    long = model.read(tokens(1, 200))
    sizes = [[(name, leaf.shape) for name, leaf in leaves(each.state)] for each in (read, long)]
    assert sizes[0] == sizes[1]
    with pytest.raises(MnemoError, match="another model"):
        build(memory, attend_previous=False).load_memory(tmp_path / "memory")


def gradients(model: Any, text: Tensor) -> dict[str, Tensor]:
    model.train()
    model.zero_grad()
    model(input_ids=text, labels=text).loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("memory", ["tokens", "overlap", "associative"])
def test_gradients_are_the_same_by_every_method(memory: str) -> None:
    text = tokens(2, 4 * SEGMENT)
    plain = gradients(build(memory, backward="plain"), text)
    windows: tuple[dict[str, Any], ...] = ({"backward": "checkpoint"}, {"bptt": 3, "window": "tumbling"}, {"bptt": 3})
    for options in windows:
        for name, gradient in gradients(build(memory, **options), text).items():
            assert_close(gradient, plain[name], msg=f"{options} {name}")


def test_no_gradient_passes_through_the_previous_segment() -> None:
    model, text = build(), tokens(1, 2 * SEGMENT)
    embedded = model.get_input_embeddings()(text).detach().requires_grad_()
    model(inputs_embeds=embedded).logits[:, SEGMENT:].sum().backward()
    assert embedded.grad is not None
    assert not embedded.grad[:, :SEGMENT].any() and embedded.grad[:, SEGMENT:].any()
    changed = text.clone()
    changed[:, 0] += 1
    assert not torch.allclose(*(model(input_ids=each).logits[:, -1] for each in (text, changed)))


def test_folders_adapters_and_exports(tmp_path: Path) -> None:
    text, model = tokens(2, 13), build("tokens", seeded().float())
    expected = model(input_ids=text).logits
    model.save_pretrained(tmp_path / "folder")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "folder")(input_ids=text).logits, expected)
    save_adapter(model, tmp_path / "adapter")
    loaded = load_adapter(tmp_path / "adapter", seeded().float())
    assert torch.equal(loaded.eval()(input_ids=text).logits, expected)
    step, state = export_step(model, batch=2).module(), step_state(model, 2)
    for part in text[:, : 2 * SEGMENT].split(SEGMENT, 1):
        logits, state = step(part, state)
    assert_close(logits, expected[:, SEGMENT : 2 * SEGMENT])


def test_half_precision() -> None:
    text = tokens(2, 3 * SEGMENT)
    wide = build("tokens", seeded().float())(input_ids=text, labels=text).loss
    half = build("tokens", seeded().bfloat16())(input_ids=text, labels=text)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = build("tokens", seeded().float()).train()(input_ids=text, labels=text)
    mixed.loss.backward()
    assert_close(half.loss.bfloat16(), wide.bfloat16())
    assert_close(mixed.loss.bfloat16(), wide.bfloat16())
    assert mixed.memory.previous.keys[0].dtype == torch.float32


def test_models_and_options_that_do_not_fit() -> None:
    with pytest.raises(MnemoError, match="use segment=13 or less"):
        build("tokens", gpt2(n_positions=32).double(), segment=14)
    with pytest.raises(MnemoError, match="encoders attend in both directions"):
        add_memory(bert(), 3, SEGMENT, attend_previous=True)
    with pytest.raises(MnemoError, match="True or False"):
        build(attend_previous="yes")
    backbone = llama()
    backbone.gradient_checkpointing_enable()
    with pytest.raises(MnemoError, match='backward="checkpoint"'):
        build(backbone=backbone)
    with pytest.raises(MnemoError, match="needs memory tokens .* and the previous segment"):
        build("tokens")(input_ids=tokens(1, 5), memory=torch.zeros(1, 3, 16))


def test_other_rotations_than_llamas_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = seeded().double()
    rotary = backbone.model.rotary_emb
    build(backbone=seeded().double())
    monkeypatch.setattr(rotary, "inv_freq", rotary.inv_freq.flip(0))  # no longer those that the keys were rotated by
    monkeypatch.setattr(type(rotary), "forward", _with_frequencies(rotary.inv_freq.flip(0)))
    with pytest.raises(MnemoError, match="differ from Llama's"):
        build(backbone=backbone)


def _with_frequencies(frequencies: Tensor) -> Any:
    def forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None] * torch.cat([frequencies, frequencies]).to(x)
        return angles.cos(), angles.sin()

    return forward
