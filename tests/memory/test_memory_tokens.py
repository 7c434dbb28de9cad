"""Memory tokens: against the published code, as identities, and around backbones that are not ours."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import published_rmt
from helpers.models import SMALL, random_model, random_tokens, read
from helpers.tolerances import assert_close
from torch import Tensor, nn

from mnemo.data.corpus import Split
from mnemo.errors import MnemoError
from mnemo.evaluation.perplexity import evaluate
from mnemo.inference.decoder import Decoder
from mnemo.interop.parity import rmt
from mnemo.interop.parity.comparison import check
from mnemo.memory import XL, Compressive, Infinite, Lookahead, MemoryTokens, Plan, WithMemoryTokens
from mnemo.memory.state import detach, leaves, nbytes, reset, select
from mnemo.model import Model, ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Learned, Relative, Rotary
from mnemo.ops import Causal
from mnemo.recipes.recipe import EvalConfig
from mnemo.storage.memory_file import load_memory, save_memory

GOLDEN = Path(__file__).parents[1] / "golden" / "rmt"
FOLDERS = [GOLDEN, *(Path(more) / "rmt" for more in [os.environ.get("MNEMO_GOLDEN")] if more)]
FILES = [path for folder in FOLDERS for path in sorted(folder.glob("*.safetensors"))]
DIM = SMALL["dim"]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_published_numbers(path: Path) -> None:
    result = check(path)
    assert result.status == "passed", f"{result.worst}: {result.errors}"
    assert {"losses", "memories", "masks", "evaluation", "gradients"} <= result.errors.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_mem_tokens": 5, "mem_len": 9, "n_layer": 1, "bptt": 0},
        {"num_mem_tokens": 4, "mem_len": 3, "tgt_len": 6, "pre_lnorm": True, "clamp_len": 4, "n_seg": 2},
        pytest.param({"num_mem_tokens": 1, "bptt": 2, "batch": 1}, marks=pytest.mark.thorough),
        {"num_mem_tokens": 4, "mem_at_end": False, "mem_len": 5, "tie_weight": False, "n_layer": 1},
        {"num_mem_tokens": 3, "same_length": True, "mem_len": 6, "n_layer": 1},
    ],
    ids=["cache", "short cache", "one token", "read only", "same length"],
)
def test_other_models_of_the_published_code(changes: dict[str, Any], tmp_path: Path) -> None:
    result = check(published_rmt.write(tmp_path / "rmt.safetensors", **changes))
    assert result.status == "passed", f"{result.worst}: {result.errors}"


@pytest.mark.parametrize(
    ("mistake", "group"),
    [
        ({"ahead": "signed"}, "losses"),
        ({"ahead": "zero"}, "losses"),
        ({"mask": "causal"}, "masks"),
        ({"write": False, "carry_read": True}, "losses"),
    ],
    ids=["signed", "zero", "causal", "read only"],
)
def test_mistakes_show(mistake: dict[str, Any], group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = rmt.load
    monkeypatch.setattr(rmt, "load", lambda reference, changes: right(reference, {**changes, **mistake}))
    result = check(GOLDEN / "rmt_nocache_bptt0.safetensors")
    assert result.status == "failed" and result.errors[group] > 1e-3


def test_no_memory_tokens_are_the_backbone() -> None:
    without, zero = random_model(), random_model(tokens=MemoryTokens(num=0))
    tokens = random_tokens(2, 12)
    assert torch.equal(read(without, tokens, 4)[0], read(zero, tokens, 4)[0])
    lengths = torch.tensor([2, 4])
    assert torch.equal(
        without(tokens[:, :4], lengths=lengths)[0].hidden[1], zero(tokens[:, :4], lengths=lengths)[0].hidden[1]
    )


def test_a_memory_that_is_not_carried_is_prompt_tuning() -> None:
    """The learned rows are the embeddings of extra words in front of every segment."""
    num, vocab = 3, SMALL["vocab_size"]
    model = random_model(tokens=MemoryTokens(num=num, write=False, mask="causal"), memory=0)
    plain = random_model(vocab_size=vocab + num, memory=0)
    ours = {name: weight for name, weight in model.state_dict().items() if not name.startswith("memory_tokens")}
    assert model.memory_tokens is not None
    words = model.memory_tokens.initial.detach() / DIM**0.5
    ours["embedding.tables.0"] = torch.cat([ours["embedding.tables.0"], words])
    ours["softmax.biases.0"] = torch.cat([ours["softmax.biases.0"], torch.zeros(num, dtype=torch.float64)])
    plain.load_state_dict(ours)
    tokens = random_tokens(2, 8)
    prompt = torch.arange(vocab, vocab + num).expand(2, -1)
    state = None
    for segment in tokens.split(4, 1):
        out, state = model(segment, state)
        expected, _ = plain(torch.cat([prompt, segment], 1))
        assert_close(out.hidden, expected.hidden[:, num:])


def test_block_masks_are_causal_masks_for_one_memory_token() -> None:
    tokens = random_tokens(2, 12)
    for memory in (0, 5):
        block = random_model(tokens=MemoryTokens(num=1, memory_sees_cache=True), memory=memory)
        causal = block.variant(tokens=MemoryTokens(num=1, mask="causal"))
        assert_close(read(block, tokens, 4)[0], read(causal, tokens, 4)[0])


def test_the_mask_can_be_printed() -> None:
    expected = """
       cc rr ttt ww
read   .. ## ... ..
read   .. ## ... ..
token  ## ## #.. ..
token  ## ## ##. ..
token  ## ## ### ..
write  .. ## ### ##
write  .. ## ### ##"""
    assert MemoryTokens(num=2).describe(3, cached=2) == expected.removeprefix("\n")
    assert MemoryTokens(num=2, memory_sees_cache=True).pattern(3, cached=2)[:, :2].all()
    assert torch.equal(MemoryTokens(num=2, write=False, mask="causal").pattern(3), torch.ones(5, 5).tril().bool())


def test_decoding_rolls_the_memory_at_segment_ends() -> None:
    model, tokens = random_model(tokens=MemoryTokens(num=2), memory=3), random_tokens(2, 10)
    _, expected = read(model, tokens[:, :8], 4)
    decoder = model.decoder(batch=2, segment=4)
    decoder.feed(tokens[:, :7])
    before = decoder.state().state
    decoder.feed(tokens[:, 7:10])
    after = decoder.state().state
    assert_close(after.memory, expected.memory)
    assert (before.memory - after.memory).abs().max() > 1e-3
    assert after.started.tolist() == [1, 1]
    assert decoder.state().open[0].keys.shape[2] == 2 + 2  # the read block and two tokens, nothing written yet


def test_text_before_the_last_segment_matters_only_through_the_memory() -> None:
    model, tokens = random_model(tokens=MemoryTokens(num=2), memory=0), random_tokens(1, 8)
    changed = tokens.clone()
    changed[0, 0] = (changed[0, 0] + 1) % SMALL["vocab_size"]
    (_, state), (_, other) = read(model, tokens[:, :4], 4), read(model, changed[:, :4], 4)
    assert (state.memory - other.memory).abs().max() > 1e-3
    swapped = read(model, tokens[:, 4:], 4, other._replace(memory=state.memory))[0]
    assert torch.equal(swapped, read(model, tokens[:, 4:], 4, state)[0])
    static = model.variant(tokens=MemoryTokens(num=2, write=False))
    _, state = read(static, tokens[:, :4], 4)
    assert torch.equal(read(static, tokens[:, 4:], 4, state)[0], read(static, tokens[:, 4:], 4)[0])
    assert nbytes(state) == nbytes(other) - 2 * DIM * 8


def test_rows_without_tokens_keep_their_memory() -> None:
    model, tokens = random_model(tokens=MemoryTokens(num=2), memory=3), random_tokens(3, 8)
    _, state = read(model, tokens[:, :4], 4)
    state = reset(state, torch.tensor([False, False, True]))
    _, after = model(tokens[:, 4:], state, lengths=torch.tensor([4, 0, 0]))
    assert torch.equal(after.memory[1:], state.memory[1:])
    assert after.started.tolist() == [1, 1, 0]
    assert torch.equal(after.inner[0].hidden[1:], state.inner[0].hidden[1:])
    other = tokens.clone()
    other[0, 7] = 0
    again, _ = model(other[:, 4:], state, lengths=torch.tensor([3, 4, 0]))
    expected, _ = model(tokens[:, 4:], state, lengths=torch.tensor([3, 4, 0]))
    assert torch.equal(again.hidden[0, :3], expected.hidden[0, :3])


def test_dropout_falls_on_memory_tokens_too() -> None:
    """The published code drops them at the input and, with the rest of the output, before they are carried on."""
    assert (dropped_memory(DropoutConfig(output=0.5)) == 0).any()
    model = random_model(tokens=MemoryTokens(num=2), memory=0, dropout=DropoutConfig(input=0.5)).train()
    assert model.memory_tokens is not None
    seen: list[Tensor] = []
    model.stages[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(random_tokens(2, 4))
    read_block, write_block = seen[0][:, :2], seen[0][:, -2:]
    assert (read_block == 0).any() and (write_block == 0).any() and not torch.equal(read_block, write_block)


def dropped_memory(dropout: DropoutConfig) -> Tensor:
    model = random_model(tokens=MemoryTokens(num=2), memory=0, dropout=dropout).train()
    return model(random_tokens(2, 4))[1].memory


def test_penalties_leave_memory_tokens_out() -> None:
    model = random_model(tokens=MemoryTokens(num=2, mask="causal"), memory=0, activation_penalty=0.2).train()
    out, _ = model(random_tokens(2, 8))
    torch.testing.assert_close(out.aux["activation"], 0.2 * out.hidden.square().mean())


def test_memory_tokens_start_from_distinct_learned_rows() -> None:
    def initial(tokens: MemoryTokens) -> Tensor:
        torch.manual_seed(0)
        module = Model(ModelConfig(**{**SMALL, "dim": 200}, tokens=tokens)).memory_tokens
        assert module is not None
        return module.initial.detach()

    distinct = initial(MemoryTokens(num=3, std=0.5))
    assert (distinct[0] - distinct[1]).abs().max() > 0.1
    assert 0.45 < float(distinct.std()) < 0.55
    identical = initial(MemoryTokens(num=3).published())
    assert torch.equal(identical, identical[:1].expand_as(identical))
    assert 0.9 < float(identical.std()) < 1.1


def test_published_sets_every_quirk() -> None:
    plan = Plan(long=Lookahead(length=4), short=XL(length=2), num_long=1)
    config = ModelConfig(tokens=MemoryTokens(num=3, write=False), memory=plan).published()
    assert config.memory == replace(plan, long=Lookahead(length=4).published()) != plan
    assert config.tokens == MemoryTokens(num=3, write=False, ahead="wrap", identical_init=True, carry_read=True)
    assert MemoryTokens(num=3).published() == MemoryTokens(num=3, ahead="wrap", identical_init=True)


def test_explained_attention_has_rows_for_memory_tokens() -> None:
    model, tokens = random_model(tokens=MemoryTokens(num=2), memory=3), random_tokens(2, 4)
    out, _, layers = model.explain(tokens)
    assert_close(model.logits(out), read(model, tokens, 4)[0])
    assert layers[0].probabilities.shape == (2, 2, 2 + 4 + 2, 3 + 8)
    assert torch.equal(layers[0].probabilities[0, 0, :, 3:] > 0, MemoryTokens(num=2).pattern(4))


def test_memories_are_saved_and_loaded(tmp_path: Path) -> None:
    plan = Plan(long=Lookahead(length=4), short=XL(length=3), num_long=2, arrangement="last")
    model, tokens = random_model(tokens=MemoryTokens(num=2), memory=plan), random_tokens(2, 11)
    _, state = read(model, tokens[:, :4], 4)
    decoder = model.decoder(batch=2, segment=4)
    decoder.feed(tokens[:, :6])
    for number, memory in enumerate((state, decoder.state())):
        path = tmp_path / f"{number}.safetensors"
        save_memory(path, model, memory, segment=4)
        loaded = load_memory(path, model).memory
        assert type(loaded) is type(memory)
        for (name, a), (other, b) in zip(leaves(memory), leaves(loaded), strict=True):
            assert name == other and torch.equal(a, b)
    again = model.decoder(loaded, segment=4)
    assert torch.equal(again.feed(tokens[:, 6:]).hidden, decoder.feed(tokens[:, 6:]).hidden)


class GRUBackbone(nn.Module):
    """A recurrent network: it sees what is behind it, whatever the mask allows ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(DIM, DIM)

    def forward(
        self, embeddings: Tensor, state: Any, *, mask: Any, positions: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        hidden = embeddings.new_zeros(len(embeddings), DIM) if state is None else state
        outputs = []
        for place, rows in zip(positions.tolist(), embeddings.unbind(1), strict=True):
            after = self.cell(rows, hidden)
            hidden = after if lengths is None else torch.where((place < lengths)[:, None], after, hidden)
            outputs.append(hidden)
        return torch.stack(outputs, 1), hidden.detach()


class EncoderBackbone(nn.Module):
    """A stock transformer that takes the mask as a tensor and absolute positions."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.positions = nn.Embedding(20, DIM)

    def forward(
        self, embeddings: Tensor, state: None, *, mask: Any, positions: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, None]:
        rows = embeddings.shape[1]
        visible = mask.visible(rows, rows, 0, embeddings.device).expand(len(embeddings), rows, rows)
        hidden = self.encoder(embeddings + self.positions(positions), ~visible.repeat_interleave(2, 0))
        return hidden, None


@pytest.mark.parametrize("mask", ["block", "causal"])
@pytest.mark.parametrize("backbone", [GRUBackbone, EncoderBackbone])
def test_any_backbone_that_takes_embeddings_will_do(backbone: type[nn.Module], mask: Any) -> None:
    torch.manual_seed(0)
    recurrent = WithMemoryTokens(MemoryTokens(num=2, mask=mask), backbone(), DIM).double().train()
    x = torch.randn(2, 9, DIM, dtype=torch.float64, requires_grad=True)
    lengths = [torch.tensor([4, 2]), torch.tensor([0, 4]), torch.tensor([3, 1])]
    state, last = None, torch.zeros(0)
    begin = torch.zeros(2, dtype=torch.int64)
    alone: list[Any] = [None, None]
    for counts in lengths:
        rows = torch.stack([x[b].roll(-int(begin[b]), 0)[:4] for b in range(2)])
        hidden, state = recurrent(rows, state, lengths=counts)
        for b, count in enumerate(counts.tolist()):
            if count:
                last, alone[b] = recurrent(rows[b : b + 1, :count], alone[b])
                assert_close(hidden[b, :count], last[0])
        begin += counts
    assert state is not None
    assert_close(state.memory, torch.cat([own.memory for own in alone]))
    (gradient,) = torch.autograd.grad(state.memory[1].sum(), x)
    assert (gradient[1].abs().amax(-1) > 0).tolist() == [True] * 7 + [False] * 2
    assert gradient[0].abs().max() == 0
    assert not detach(state).memory.requires_grad
    assert torch.equal(select(state, torch.tensor([1, 1])).memory[0], state.memory[1])
    fresh = reset(state, torch.tensor([True, False]))
    hidden, _ = recurrent(x[:, :4], fresh)
    assert_close(hidden[0], recurrent(x[:1, :4])[0][0])


def test_our_own_model_is_such_a_backbone() -> None:
    plain = random_model(memory=3)
    recurrent = WithMemoryTokens(MemoryTokens(num=0), plain.run, DIM).double()
    tokens = random_tokens(2, 8)
    state = recurrent.memory_tokens.init(2, plain.init(2))
    hidden, state = recurrent(plain.embedding(tokens[:, :4]), state)
    hidden, _ = recurrent(plain.embedding(tokens[:, 4:]), state)
    assert_close(plain.softmax.logits(hidden, plain.embedding), read(plain, tokens, 4)[0][:, 4:])


def test_impossible_combinations_are_refused_with_the_reason() -> None:
    tokens = MemoryTokens(num=2)
    refused: list[tuple[str, Any]] = [
        ('same_length.*mask="causal"', lambda: ModelConfig(tokens=tokens, same_length=True)),
        ("rotary", lambda: ModelConfig(tokens=replace(tokens, ahead="zero"), positions=Rotary())),
        ("no room for text in 4", lambda: without_memory(tokens=tokens, positions=Learned(length=4))),
        ("-1 memory tokens", lambda: MemoryTokens(num=-1)),
        ("negative", lambda: MemoryTokens(std=-1.0)),
        ("carry_read", lambda: MemoryTokens(carry_read=True)),
        ("takes embeddings", lambda: WithMemoryTokens(tokens, lambda tokens: (tokens, None), DIM)),
        ("takes embeddings", lambda: WithMemoryTokens(tokens, random_model(), DIM)),
    ]
    for reason, make in refused:
        with pytest.raises(ValueError, match=reason):
            make()
    ModelConfig(tokens=replace(tokens, mask="causal"), same_length=True)
    ModelConfig(tokens=MemoryTokens(num=0), same_length=True)
    ModelConfig(tokens=tokens.published(), positions=Relative())


def test_evaluation_refuses_what_does_not_fit_memory_tokens() -> None:
    model = random_model(tokens=MemoryTokens(num=2), memory=0)
    split = Split("valid", random_tokens(1, 60)[0].numpy(), None, 60, 0, 0)
    assert evaluate(model, split, EvalConfig(batch=2), segment=4).tokens == 58
    with pytest.raises(MnemoError, match="cannot encode earlier tokens again"):
        evaluate(model, split, EvalConfig(batch=2, context=3), segment=4)
    with pytest.raises(MnemoError, match="same_length"):
        evaluate(model, split, EvalConfig(batch=2, same_length=True), segment=4)


def without_memory(**changes: Any) -> ModelConfig:
    return ModelConfig(memory=Plan(long=XL(length=0)), **changes)


def test_a_mask_for_stock_backbones_is_causal() -> None:
    assert MemoryTokens(mask="causal").build(4).row_mask(torch.tensor([4])) == Causal()


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [MemoryTokens(num=3), MemoryTokens(num=3).published()], ids=["signed", "published"])
def test_a_gpu_gives_the_same_numbers(tokens: MemoryTokens) -> None:
    model, words = random_model(tokens=tokens, memory=5), random_tokens(2, 12)
    expected, _ = read(model, words, 4)
    model, words = model.cuda(), words.cuda()
    assert_close(read(model, words, 4)[0].cpu(), expected)
    decoder = model.decoder(batch=2, segment=4)
    assert_close(torch.cat([model.logits(decoder.feed(part)) for part in words.split(3, 1)], 1).cpu(), expected)
    lengths = torch.tensor([4, 2])
    ragged = model(words[:, :4], lengths=lengths.cuda())[0].hidden[1, :2]
    assert_close(ragged, model(words[1:, :2])[0].hidden[0])


@pytest.mark.parametrize(
    "memory",
    [
        XL(length=5),
        Compressive(length=4, compressed=6, ratio=2, function="most_used", loss="none"),
        Infinite(length=4, basis=6, block=3, samples=16, widths=(0.1, 0.3), sticky=True),
    ],
    ids=["xl", "compressive", "infinite"],
)
def test_a_read_block_that_is_carried_on_is_attended_to_once(memory: Any) -> None:
    """Two of these memories count attention. The block's outputs are computed again at the end of a segment."""
    tokens = MemoryTokens(num=3, write=False, carry_read=True)
    model, text = random_model(memory=Plan(long=memory), tokens=tokens), random_tokens(2, 40)
    decoder, state, expected = Decoder(model, model.init(2, cached=True), segment=4), model.init(2, cached=True), []
    with torch.no_grad():
        for part in text.split(4, 1):
            out, state = model(part, state)
            expected.append(out.hidden)
        fed = torch.cat([decoder.feed(token).hidden for token in text.split(1, 1)], 1)
    assert_close(fed, torch.cat(expected, 1))
