"""Memory tokens around models of transformers: the same numbers whichever way they are read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers.hf_backbones import CAUSAL, PAD, bert, gpt2, llama, roberta, tokens
from helpers.tolerances import assert_close
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from mnemo import MnemoError
from mnemo.hf import MemoryCache, add_memory
from mnemo.hf.memory_tokens.position_ids import position_ids
from mnemo.hf.memory_tokens.split import split_into_segments
from mnemo.memory import MemoryTokens

FAMILIES = pytest.mark.parametrize("family", CAUSAL)
POLICIES = pytest.mark.parametrize(
    ("mask", "positions"), [(mask, place) for mask in ("causal", "block") for place in ("continue", "tokens", "fixed")]
)


def build(family: str = "gpt2", **options: Any) -> Any:
    """A model with memory in double precision, without dropout."""
    options = dict(tokens=3, segment=5) | options
    return add_memory(CAUSAL[family]().double().eval(), **options)


@FAMILIES
def test_without_memory_tokens_one_segment_is_the_untouched_model(family: str) -> None:
    backbone = CAUSAL[family]()
    untouched = copy.deepcopy(backbone)
    model = add_memory(backbone, tokens=0, segment=12)
    x = tokens(2, 12)
    expected, got = untouched(input_ids=x, labels=x), model(input_ids=x, labels=x, return_logits=True)
    assert torch.equal(got.logits, expected.logits)
    assert torch.equal(got.loss, expected.loss)
    expected.loss.backward()
    got.loss.backward()
    for (name, one), (_, other) in zip(untouched.named_parameters(), backbone.named_parameters(), strict=True):
        assert one.grad is not None and torch.equal(one.grad, other.grad), name


def test_dropout_falls_where_it_does_without_memory_tokens() -> None:
    backbone = gpt2(resid_pdrop=0.2, attn_pdrop=0.2)
    untouched, x = copy.deepcopy(backbone), tokens(2, 12)
    model = add_memory(backbone, tokens=0, segment=12)
    gradients = []
    for each in (untouched.train(), model.train()):
        torch.manual_seed(3)
        each(input_ids=x, labels=x).loss.backward()
        gradients.append(each.get_input_embeddings().weight.grad)
    assert_close(*gradients)  # another mask would change them by far more than rounding


def test_adding_memory_changes_no_weight_and_no_mode() -> None:
    backbone = gpt2()
    before = copy.deepcopy(backbone.state_dict())
    model = add_memory(backbone.train(), tokens=3, segment=5)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any(module.training for module in add_memory(gpt2().eval(), 3, 5).modules())
    deviation = backbone.get_input_embeddings().weight.std()
    assert 0.5 < model.memory_tokens.initial.std() / deviation < 2


@FAMILIES
@POLICIES
def test_token_by_token_equals_the_parallel_reading(family: str, mask: str, positions: str) -> None:
    model, x = build(family, mask=mask, positions=positions), tokens(2, 17)
    with torch.no_grad():
        expected = model(input_ids=x)
        out = model(input_ids=x[:, :7], use_cache=True)
        pieces = [out.logits]
        for column in range(7, 17):
            out = model(input_ids=x[:, column : column + 1], past_key_values=out.past_key_values)
            pieces.append(out.logits)
            (group,) = out.past_key_values.groups
            assert group.count == (column + 1) % 5
            assert group.count == 0 or group.cache.get_seq_length() == 3 + group.count  # no write block stays
    assert_close(torch.cat(pieces, 1), expected.logits)


@POLICIES
def test_the_second_segment_reads_what_the_first_one_wrote(mask: str, positions: str) -> None:
    model, x = build("llama", mask=mask, positions=positions), tokens(2, 10)
    with torch.no_grad():
        whole = model(input_ids=x)
        first = model(input_ids=x[:, :5])
        second = model(input_ids=x[:, 5:], memory=first.memory)
        fresh = model(input_ids=x[:, 5:])
    assert_close(torch.cat([first.logits, second.logits], 1), whole.logits)
    assert_close(second.memory, whole.memory)
    assert (fresh.logits - second.logits).abs().max() > 1e-3


@pytest.mark.parametrize("align", ["left", "right"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mask", ["causal", "block"])
def test_a_padded_batch_equals_its_rows(mask: str, side: str, align: str) -> None:
    model, lengths = build("gpt2", mask=mask, align=align, positions="tokens"), [13, 4, 7]
    rows = [tokens(1, length, seed=length) for length in lengths]
    batch, seen = pad(rows, side)
    labels = batch.masked_fill(seen == 0, -100)
    with torch.no_grad():
        got = model(input_ids=batch, attention_mask=seen, labels=labels)
        alone = [model(input_ids=row, labels=row) for row in rows]
        stepwise = model(input_ids=batch, attention_mask=seen, use_cache=True)
    for number, row in enumerate(alone):
        assert_close(got.logits[number][seen[number] == 1], row.logits[0])
        assert_close(stepwise.logits[number][seen[number] == 1], row.logits[0])
        assert_close(got.memory[number], row.memory[0])
    totals = torch.stack([row.loss * (length - 1) for row, length in zip(alone, lengths, strict=True)])
    assert_close(got.loss, totals.sum() / (sum(lengths) - len(lengths)))


def pad(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    width = max(row.shape[1] for row in rows)
    batch, seen = torch.full((len(rows), width), PAD), torch.zeros(len(rows), width, dtype=torch.long)
    for number, row in enumerate(rows):
        columns = slice(width - row.shape[1], width) if side == "left" else slice(0, row.shape[1])
        batch[number, columns], seen[number, columns] = row[0], 1
    return batch, seen


def test_right_alignment_makes_the_first_segment_short() -> None:
    model, x = build(align="right"), tokens(2, 12)
    with torch.no_grad():
        whole, memory, pieces = model(input_ids=x).logits, None, []
        for part in (x[:, :2], x[:, 2:7], x[:, 7:]):
            out = model(input_ids=part, memory=memory)
            memory = out.memory
            pieces.append(out.logits)
    assert_close(torch.cat(pieces, 1), whole)


def test_segments_end_together() -> None:
    mask = torch.tensor([[1] * 7, [0] * 4 + [1] * 3])
    left = split_into_segments(2, 7, mask, 3, "left", torch.device("cpu"))
    assert [None if s.lengths is None else s.lengths.tolist() for s in left] == [[3, 0], [3, 0], [1, 3]]
    assert left[-1].columns[0, 0] == 6 and left[-1].columns[1].tolist() == [4, 5, 6]
    right = split_into_segments(2, 7, mask, 3, "right", torch.device("cpu"))
    assert [None if s.lengths is None else s.lengths.tolist() for s in right] == [[1, 0], [3, 0], None]
    assert right[-1].columns.tolist() == [[4, 5, 6], [4, 5, 6]]
    assert len(split_into_segments(2, 7, mask, 3, "right", torch.device("cpu"), most=2)) == 2


@pytest.mark.parametrize(
    "options",
    [
        dict(do_sample=False),
        dict(do_sample=True, temperature=1.3, num_return_sequences=2),
        dict(do_sample=False, num_beams=3),
    ],
    ids=["greedy", "sampling", "beams"],
)
@pytest.mark.parametrize("mask", ["causal", "block"])
def test_generation_equals_reading_everything_again_for_every_token(mask: str, options: dict[str, Any]) -> None:
    model = build("llama", mask=mask)
    x, seen = pad([tokens(1, 7), tokens(1, 3, seed=2)], "left")

    def run(use_cache: bool) -> Tensor:
        torch.manual_seed(5)
        return model.generate(x, attention_mask=seen, max_new_tokens=14, use_cache=use_cache, **options)

    assert torch.equal(run(True), run(False))


def test_generation_goes_on_from_a_memory_and_from_a_cache() -> None:
    model, x = build(), tokens(1, 9)
    ones = torch.ones_like(x)
    whole = model.generate(x, attention_mask=ones, max_new_tokens=9, do_sample=False)
    memory = model(input_ids=x[:, :5]).memory
    rest = model.generate(x[:, 5:], attention_mask=ones[:, 5:], max_new_tokens=9, do_sample=False, memory=memory)
    assert torch.equal(rest, whole[:, 5:])
    options: dict[str, Any] = dict(max_new_tokens=9, num_beams=2, num_return_sequences=2, memory=memory)
    beams = [model.generate(x[:, 5:], attention_mask=ones[:, 5:], use_cache=use, **options) for use in (True, False)]
    assert torch.equal(*beams)
    with pytest.raises(MnemoError, match="this model needs"):
        model.generate(x, attention_mask=ones, max_new_tokens=2, memory=memory[:, :1])
    cache = MemoryCache()
    first = model.generate(x, attention_mask=ones, max_new_tokens=4, do_sample=False, past_key_values=cache)
    ones = torch.ones_like(first)
    assert torch.equal(
        model.generate(first, attention_mask=ones, max_new_tokens=5, do_sample=False, past_key_values=cache), whole
    )


def test_assisted_decoding_and_foreign_caches_are_refused() -> None:
    from transformers import DynamicCache

    model, x = build(), tokens(1, 4)
    with pytest.raises(ValueError, match="stateful"):
        model.generate(x, attention_mask=torch.ones_like(x), prompt_lookup_num_tokens=2, max_new_tokens=3)
    with pytest.raises(MnemoError, match="use a MemoryCache"):
        model(input_ids=x, past_key_values=DynamicCache())
    with pytest.raises(MnemoError, match="cannot be cropped"):
        MemoryCache().crop(1)


def test_block_masks_are_those_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spy(model := build(mask="block"))
    model(input_ids=tokens(1, 5))
    expected = MemoryTokens(num=3, mask="block").pattern(5)
    assert torch.equal(seen[0]["attention_mask"][0, 0] == 0, expected)


def spy(model: Any) -> list[dict[str, Any]]:
    """Record the arguments of all later calls of the backbone's body."""
    calls: list[dict[str, Any]] = []
    model.backbone.base_model.register_forward_pre_hook(lambda _, a, kwargs: calls.append(kwargs), with_kwargs=True)
    return calls


def test_position_policies() -> None:
    rows, counts = torch.arange(8), torch.tensor([4, 1])  # [read 2, tokens, write 2, padding]
    assert position_ids("continue", rows, 2, 2, counts) is None
    tokens_first, fixed = (position_ids(policy, rows, 2, 2, counts) for policy in ("tokens", "fixed"))
    assert tokens_first is not None and fixed is not None
    assert tokens_first[0].tolist() == [0, 0, 0, 1, 2, 3, 4, 5]
    assert tokens_first[1, :5].tolist() == [0, 0, 0, 1, 2]
    assert fixed[0].tolist() == [0, 1, 4, 5, 6, 7, 2, 3]
    assert fixed[1, :5].tolist() == [0, 1, 4, 2, 3]
    assert 0 <= min(tokens_first.min(), fixed.min()) and max(tokens_first.max(), fixed.max()) < 8  # padding too


def test_stock_positions_and_masks_are_left_to_the_backbone() -> None:
    seen = spy(model := build(mask="causal", positions="continue"))
    model(input_ids=tokens(2, 12))
    assert len(seen) == 3
    assert all(call.get("position_ids") is None and call.get("attention_mask") is None for call in seen)


def test_flash_attention_is_refused_where_it_would_do_something_else() -> None:
    for options, message in ((dict(positions="fixed"), "as several texts"), (dict(mask="block"), "no 4-D mask")):
        model = build("llama", **options)
        model.backbone.config._attn_implementation = "flash_attention_2"
        with pytest.raises(MnemoError, match=message):
            model(input_ids=tokens(1, 4))


def test_roberta_counts_from_behind_its_padding() -> None:
    model = add_memory(roberta(), tokens=2, segment=6, positions="tokens")
    calls: list[Tensor] = []
    places = model.backbone.roberta.embeddings.position_embeddings
    places.register_forward_pre_hook(lambda _, given: calls.append(given[0]))
    model(input_ids=tokens(1, 4))
    assert calls[0].tolist() == [[2, 2, 2, 3, 4, 5]]  # the first token, the memory, the other tokens
    with pytest.raises(MnemoError, match="need 66 positions, but the backbone has 64"):
        add_memory(roberta(), tokens=2, segment=64)


@FAMILIES
def test_one_folder_saves_and_loads_everything(family: str, tmp_path: Any) -> None:
    model = add_memory(CAUSAL[family]().eval(), tokens=2, segment=6, mask="block", bptt=1, score=2)
    model.save_pretrained(tmp_path)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model) and loaded.config.mask == "block" and loaded.config.score == 2
    x = tokens(2, 11)
    assert torch.equal(model(input_ids=x).logits, loaded(input_ids=x).logits)
    assert (loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight) == (family == "gpt2")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json"] * 3 + [".md", ".safetensors"]


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_half_precision_backbones_get_half_precision_memory() -> None:
    with torch.backends.mkldnn.flags(enabled=False):  # its half precision kernels need more than some CPUs have
        model: Any = add_memory(llama().bfloat16(), tokens=2, segment=6)
        out = model(input_ids=tokens(2, 13), labels=tokens(2, 13))
        out.loss.backward()
    assert model.memory_tokens.initial.grad.dtype == torch.bfloat16 and out.loss.dtype == torch.float32


ENCODERS = pytest.mark.parametrize("encoder", [bert, roberta])


@ENCODERS
def test_an_encoder_without_memory_tokens_is_the_untouched_one(encoder: Any) -> None:
    backbone = encoder()
    untouched = copy.deepcopy(backbone)
    x, labels = tokens(2, 9), torch.tensor([2, 0])
    expected = untouched(input_ids=x, labels=labels)
    got = add_memory(backbone, tokens=0, segment=9)(input_ids=x, labels=labels)
    assert torch.equal(got.logits, expected.logits) and torch.equal(got.loss, expected.loss)
    expected.loss.backward()
    got.loss.backward()
    for one, other in zip(untouched.parameters(), backbone.parameters(), strict=True):
        assert one.grad is other.grad is None or torch.equal(one.grad, other.grad)  # type: ignore[arg-type]


@ENCODERS
@pytest.mark.parametrize("wrap", [None, (3, 4)])
@pytest.mark.parametrize("align", ["left", "right"])
def test_a_padded_batch_of_an_encoder_equals_its_rows(encoder: Any, wrap: Any, align: Any) -> None:
    model = add_memory(encoder().double().eval(), tokens=2, segment=6, wrap=wrap, align=align)
    rows = [tokens(1, length, seed=length) for length in (13, 3, 8)]
    batch, seen = pad(rows, "right")
    with torch.no_grad():
        got = model(input_ids=batch, attention_mask=seen).logits
        expected = torch.cat([model(input_ids=row).logits for row in rows])
    assert_close(got, expected)


def test_an_encoder_hands_the_text_of_all_segments_on() -> None:
    model = add_memory(bert().double().eval(), tokens=2, segment=6, wrap=(3, 4))
    x = tokens(1, 12)
    wrapped = torch.cat([torch.tensor([[3]]), x, torch.tensor([[4]])], 1)
    with torch.no_grad():
        logits = model(input_ids=x).logits
        assert_close(model(input_ids=wrapped).logits, logits)  # [CLS] and [SEP] of the tokenizer are not text
        other = model(input_ids=torch.cat([tokens(1, 4, seed=9), x[:, 4:]], 1)).logits
    assert (logits - other).abs().max() > 1e-4


def test_the_separator_inside_a_pair_is_text() -> None:
    model = add_memory(bert().double().eval(), tokens=2, segment=16, wrap=(3, 4))
    alone = copy.deepcopy(model)
    alone.config.wrap = None
    pairs = [torch.tensor([[3, *range(6, 9), 4, *range(9, 9 + count), 4]]) for count in (4, 2)]
    with torch.no_grad():
        expected = torch.cat([alone(input_ids=pair).logits for pair in pairs])
        assert_close(torch.cat([model(input_ids=pair).logits for pair in pairs]), expected)
        for side in ("left", "right"):
            batch, seen = pad(pairs, side)
            assert_close(model(input_ids=batch, attention_mask=seen).logits, expected)


def test_encoders_save_and_load(tmp_path: Any) -> None:
    model = add_memory(bert().eval(), tokens=2, segment=6, wrap=(3, 4))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    x = tokens(2, 14)
    assert torch.equal(model(input_ids=x).logits, loaded(input_ids=x).logits)
