"""start="overlap": memory tokens that do no harm before they are trained, and that train as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hf_backbones import CAUSAL, bert, tokens
from helpers.real_models import tiny_llama, tiny_tokenizer
from helpers.tolerances import assert_close
from torch import Tensor
from transformers import AutoModelForCausalLM

from mnemo import MnemoError
from mnemo.hf import add_memory, load_adapter, save_adapter

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big dog. The dog was very sad because he lost his ball. Lily wanted to help him. They looked under the tree and "
    "behind the slide. Then Lily saw the ball in the pond. She took a long stick and got the ball out of the water. "
    "The dog was so happy that he licked her face. Lily laughed and they played all day. When the sun went down, she "
    "went home and told her mom about her new friend. Her mom smiled and gave her a big hug. "
)


def build(family: str = "llama", **options: Any) -> Any:
    options = dict(tokens=3, segment=5, start="overlap") | options
    torch.manual_seed(0)
    return add_memory(CAUSAL[family]().double().eval(), **options)


def close_gate(model: Any) -> Any:
    """The same model without its memory: segments overlap, and nothing else."""
    with torch.no_grad():
        model.memory_tokens.gate.zero_()
    return model


def open_gate(model: Any) -> Any:
    """The same model with a gate as after training."""
    with torch.no_grad():
        model.memory_tokens.gate.uniform_(0.1, 0.9, generator=torch.Generator().manual_seed(1))
    return model


@pytest.mark.parametrize("mask", ["causal", "block"])
@pytest.mark.parametrize("positions", ["tokens", "continue"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_without_the_gate_segments_overlap_by_the_memory_tokens(family: str, positions: str, mask: str) -> None:
    if family == "gpt2" and positions == "continue":
        pytest.skip("learned positions are shifted by the memory")
    model, x = close_gate(build(family, positions=positions, mask=mask)), tokens(2, 15)
    plain = model.backbone
    with torch.no_grad():
        # Rotary tables are in single precision, also of a model in double precision.
        found = model(input_ids=x).logits.float()
        assert_close(found[:, :5], plain(input_ids=x[:, :5]).logits.float())
        if positions == "continue" and mask == "causal":  # the read block is three more tokens of the text
            assert_close(found[:, 5:10], plain(input_ids=x[:, 2:10]).logits[:, 3:].float())
            assert_close(found[:, 10:], plain(input_ids=x[:, 7:15]).logits[:, 3:].float())
        else:
            assert (found[:, 5:10] - plain(input_ids=x[:, 5:10]).logits).abs().max() > 1e-3


@pytest.mark.parametrize("mask", ["causal", "block"])
@pytest.mark.parametrize("family", CAUSAL)
def test_token_by_token_equals_the_parallel_reading(family: str, mask: str) -> None:
    model, x = open_gate(build(family, mask=mask)), tokens(2, 17)
    with torch.no_grad():
        expected = model(input_ids=x)
        out = model(input_ids=x[:, :7], use_cache=True)
        pieces = [out.logits]
        for column in range(7, 17):
            out = model(input_ids=x[:, column : column + 1], past_key_values=out.past_key_values)
            pieces.append(out.logits)
        second = model(input_ids=x[:, 10:], memory=model(input_ids=x[:, :10]).memory)
    assert_close(torch.cat(pieces, 1), expected.logits)
    assert_close(second.logits, expected.logits[:, 10:])


@pytest.mark.parametrize("align", ["left", "right"])
def test_a_padded_batch_equals_its_rows(align: str) -> None:
    model, lengths = open_gate(build(align=align)), [13, 1, 7]
    rows = [tokens(1, length, seed=length) for length in lengths]
    batch, seen = torch.zeros(3, 13, dtype=torch.int64), torch.zeros(3, 13, dtype=torch.int64)
    for number, row in enumerate(rows):
        batch[number, : row.shape[1]], seen[number, : row.shape[1]] = row[0], 1
    with torch.no_grad():
        got = model(input_ids=batch, attention_mask=seen)
        stepwise = model(input_ids=batch, attention_mask=seen, use_cache=True)
        for number, row in enumerate(rows):
            alone = model(input_ids=row)
            assert_close(got.logits[number, : row.shape[1]], alone.logits[0])
            assert_close(stepwise.logits[number, : row.shape[1]], alone.logits[0])
            assert_close(got.memory[number], alone.memory[0])


def test_generation_beams_and_memories_continue_the_text(tmp_path: Path) -> None:
    model, x = open_gate(build()), tokens(1, 13)
    ones = torch.ones_like(x)
    for options in (dict(do_sample=False), dict(num_beams=3)):
        fast, slow = (
            model.generate(x, attention_mask=ones, max_new_tokens=9, use_cache=use, **options) for use in (True, False)
        )
        assert torch.equal(fast, slow)
    whole = model.generate(x, attention_mask=ones, max_new_tokens=9, do_sample=False)
    memory = model.read(x[:, :11])
    model.save_memory(tmp_path / "memory", memory)
    loaded = model.load_memory(tmp_path / "memory")
    rest = model.generate(x[:, 11:], memory=loaded, max_new_tokens=9, do_sample=False)
    assert torch.equal(rest, whole[:, 11:])


def test_folders_and_adapters_keep_the_gate(tmp_path: Path) -> None:
    CAUSAL["llama"]().save_pretrained(tmp_path / "backbone")
    model: Any = open_gate(
        add_memory(AutoModelForCausalLM.from_pretrained(tmp_path / "backbone"), tokens=3, segment=5, start="overlap")
    )
    x = tokens(1, 13)
    expected = model(input_ids=x).logits
    model.save_pretrained(tmp_path / "folder")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    assert torch.equal(loaded(input_ids=x).logits, expected)
    save_adapter(model, tmp_path / "adapter")
    assert torch.equal(load_adapter(tmp_path / "adapter")(input_ids=x).logits, expected)


def test_other_memories_refuse_the_option() -> None:
    with pytest.raises(MnemoError, match="needs no start"):
        build(kind="associative")
    with pytest.raises(MnemoError, match="for language models"):
        add_memory(bert(), tokens=2, segment=6, start="overlap")
    with pytest.raises(MnemoError, match="start policy"):
        build(start="gentle")


def test_losses_of_later_segments_train_the_write_block_and_the_gate() -> None:
    model, x = build(bptt=None).train(), tokens(2, 15)
    labels = x.masked_fill(torch.arange(15) < 10, -100)  # a loss in the last segment only
    model(input_ids=x, labels=labels).loss.backward()
    memory = model.memory_tokens
    assert memory.gate.grad.abs().max() > 0
    assert memory.initial.grad.abs().max() > 0  # through the write blocks of two segments


def losses_by_segment(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        scores = model(input_ids=x).logits[:, :-1].log_softmax(-1).gather(2, x[:, 1:, None])[..., 0]
    # The first token of a segment is left out: only a memory can predict it.
    return torch.stack([-part[:, :-1].mean() for part in torch.split(scores, model.config.segment, 1)])


def test_an_untrained_memory_of_a_real_model_is_no_worse_than_separate_segments() -> None:
    x = tiny_tokenizer()(STORY, return_tensors="pt").input_ids[:, :64]
    assert x.shape == (1, 64)
    separate = losses_by_segment(add_memory(tiny_llama().eval(), tokens=0, segment=16), x)
    benign = losses_by_segment(add_memory(tiny_llama().eval(), tokens=8, segment=16, start="overlap"), x)
    assert_close(benign[0], separate[0])
    assert bool((benign[1:] <= separate[1:]).all()) and benign.mean() < separate.mean() - 0.1
