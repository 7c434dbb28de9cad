"""Long texts: work linear in the text, no logits that are not asked for, and a memory to continue from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hf_backbones import CAUSAL, PAD, VOCABULARY, tokens
from helpers.marks import few
from helpers.real_models import tiny_llama, tiny_tokenizer
from helpers.tolerances import assert_close
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, pipeline

from mnemo import MnemoError
from mnemo.hf import TextMemory, add_memory

SEGMENT = 5


def build(family: str = "llama", **options: Any) -> Any:
    options = dict(tokens=3, segment=SEGMENT) | options
    torch.manual_seed(0)
    return add_memory(CAUSAL[family]().double().eval(), **options)


class Work(TorchDispatchMode):
    """Count the bytes that all operations return, and the elements of the largest result of floating-point type.

    `held`: most bytes that the inputs of one operation keep in memory, of which they may be small views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes, self.largest, self.held = 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        storages = {leaf.untyped_storage().data_ptr(): leaf for leaf in inputs if leaf.is_floating_point()}
        self.held = max(self.held, sum(leaf.untyped_storage().nbytes() for leaf in storages.values()))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.num_bytes += leaf.numel() * leaf.element_size()
                self.largest = max(self.largest, leaf.numel() if leaf.is_floating_point() else 0)
        return out


def work_of(model: Any, call: Any, num_segments: int) -> Work:
    x = tokens(2, num_segments * SEGMENT)
    with torch.no_grad(), Work() as work:
        call(model, x)
    return work


CALLS = {
    "last logits": lambda model, x: model(input_ids=x, logits_to_keep=1),
    "last logits of a padded batch": lambda model, x: model(
        input_ids=x, attention_mask=(torch.arange(x.shape[1]) >= torch.tensor([[0], [7]])).long(), logits_to_keep=1
    ),
    "no logits": lambda model, x: model(input_ids=x, return_logits=False),
    "loss": lambda model, x: model(input_ids=x, labels=x, return_logits=False),
    "prompt": lambda model, x: model(input_ids=x, use_cache=True, logits_to_keep=1),
    "read": lambda model, x: model.read(x),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_reading_is_linear_in_time_and_constant_in_memory(call: Any) -> None:
    model = build()
    few, more, many = (work_of(model, call, number) for number in (8, 16, 32))
    assert many.largest == more.largest == few.largest
    assert many.held == more.held == few.held
    # Sixteen segments more cost twice as much as eight segments more; 1 % is for ids, which some steps pass on whole.
    growth = (many.num_bytes - more.num_bytes) / (more.num_bytes - few.num_bytes)
    assert growth == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("padded", [False, True])
def test_all_logits_are_copied_a_fixed_number_of_times(padded: bool) -> None:
    model = build()

    def call(model: Any, x: Any) -> None:
        mask = (torch.arange(x.shape[1]) >= torch.tensor([[0], [7 * padded]])).long() if padded else None
        out = model(input_ids=x, attention_mask=mask)
        assert out.logits.shape == (2, x.shape[1], VOCABULARY)

    few, more, many = (work_of(model, call, number).num_bytes for number in (8, 16, 32))
    assert (many - more) / (more - few) == pytest.approx(2, rel=0.01)


@pytest.mark.thorough
def test_gradients_of_all_logits_cost_linear_work() -> None:
    model = build(bptt=0, window="tumbling")

    def cost(num_segments: int) -> int:
        x = tokens(2, num_segments * SEGMENT)
        mask = (torch.arange(x.shape[1]) >= torch.tensor([[0], [7]])).long()
        with Work() as work:
            model(input_ids=x, attention_mask=mask).logits.sum().backward()
        return work.num_bytes

    few, more, many = cost(8), cost(16), cost(32)
    assert (many - more) / (more - few) == pytest.approx(2, rel=0.01)


def rows_through_the_head(model: Any) -> list[int]:
    counts: list[int] = []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, given: counts.append(given[0].shape[:-1].numel()))
    return counts


def test_logits_are_computed_only_where_they_are_asked_for() -> None:
    model = build()
    counts, x = rows_through_the_head(model), tokens(2, 43)
    with torch.no_grad():
        whole = model(input_ids=x).logits
        assert sum(counts) == 2 * 43
        for keep, computed in ((1, [2]), (5, [4, 6]), (43, [10] * 8 + [6])):
            counts.clear()
            assert_close(model(input_ids=x, logits_to_keep=keep).logits, whole[:, -keep:])
            assert counts == computed
        counts.clear()
        assert model(input_ids=x, return_logits=False).logits is None and not counts
        model(input_ids=x, labels=x.masked_fill(torch.arange(43) < 42, -100), return_logits=False)
        assert counts == [2]  # one label in each row
        model.read(x)
        assert counts == [2]
        with pytest.raises(MnemoError, match="number of last columns"):
            model(input_ids=x, logits_to_keep=torch.tensor([1, 2]))


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_last_logits_of_a_padded_batch(side: str, use_cache: bool) -> None:
    model, x = build(), tokens(3, 17)
    columns = torch.arange(17)
    padding = columns < torch.tensor([[0], [9], [4]])
    mask = (~(padding if side == "left" else padding.flip(1))).long()
    x = x.masked_fill(mask == 0, PAD)
    with torch.no_grad():
        whole = model(input_ids=x, attention_mask=mask).logits
        for keep in (1, 6, 17):
            out = model(input_ids=x, attention_mask=mask, logits_to_keep=keep, use_cache=use_cache)
            assert_close(out.logits, whole[:, -keep:])


READ = [(family, length) for family in CAUSAL for length in (1, 4, 5, 6, 10, 13)]


@pytest.mark.parametrize(("family", "length"), few(READ, lambda family, length: family == "llama" or length == 6))
def test_a_text_that_was_read_is_continued_as_if_it_were_the_prompt(family: str, length: int) -> None:
    model, x = build(family), tokens(2, 20)
    options: dict[str, Any] = dict(max_new_tokens=8, do_sample=False)
    whole = model.generate(x[:, : length + 3], attention_mask=torch.ones(2, length + 3), **options)
    memory = model.read(x[:, :length])
    assert memory.num_tokens == length and 1 <= memory.open.shape[1] <= SEGMENT
    prompt = x[:, length : length + 3]
    assert torch.equal(model.generate(prompt, memory=memory, **options), whole[:, length:])
    assert torch.equal(model.generate(prompt, memory=memory, use_cache=False, **options), whole[:, length:])
    assert torch.equal(model.generate(memory=model.read(prompt, memory), **options), whole[:, length + 3 :])
    with torch.no_grad():
        expected = model(input_ids=x, labels=x)
        follow = model(input_ids=x[:, length:], labels=x[:, length:], memory=memory)
        stepwise = model(input_ids=x[:, length:], memory=memory, use_cache=True)
    assert_close(follow.logits, expected.logits[:, length:])
    assert_close(stepwise.logits, expected.logits[:, length:])
    assert_close(follow.memory, expected.memory)


def test_pieces_of_any_kind_give_the_same_memory() -> None:
    model, x = build(), tokens(1, 23)
    whole = model.read(x)
    ids = x[0].tolist()
    pieces: list[Any] = [
        x[0],
        ids,
        tuple(x.split(4, 1)),
        [ids[:9], ids[9:10], ids[10:]],
        iter(ids),
        [x[0, :20], *ids[20:]],
    ]
    for source in pieces:
        memory = model.read(source)
        assert torch.equal(memory.open, whole.open) and memory.num_tokens == 23
        assert_close(memory.state.memory, whole.state.memory)
    assert_close(model.read(x[:, 11:], memory=model.read(x[:, :11])).state.memory, whole.state.memory)


@pytest.mark.parametrize("use_cache", [False, True])
def test_a_batch_of_different_lengths_continues_one_text(use_cache: bool) -> None:
    model, x = build(align="right"), tokens(1, 12)
    memory = model.read(x)
    rows = tokens(2, 9, seed=3)
    mask = (torch.arange(9) < torch.tensor([[9], [2]])).long()
    with torch.no_grad():
        found = model(input_ids=rows, attention_mask=mask, memory=memory, use_cache=use_cache).logits
        model.config.align = "left"
        for row, length in ((0, 9), (1, 2)):
            whole = model(input_ids=torch.cat([x, rows[row : row + 1, :length]], 1)).logits
            assert_close(found[row, :length], whole[0, 12:])


def test_reading_leaves_mode_and_gradients_alone() -> None:
    model = build("gpt2").train()
    memory = model.read(tokens(1, 12))
    assert model.training and not memory.state.memory.requires_grad


def test_one_text_is_continued_in_several_ways() -> None:
    model, x = build(), tokens(1, 12)
    memory = model.read(x)
    prompts = tokens(3, 4, seed=1)
    options: dict[str, Any] = dict(max_new_tokens=6, do_sample=False)
    together = model.generate(prompts, memory=memory, **options)
    alone = [model.generate(row[None], memory=memory, **options) for row in prompts]
    assert torch.equal(together, torch.cat(alone))
    beams = [
        model.generate(prompts, memory=memory, num_beams=2, max_new_tokens=6, use_cache=use) for use in (True, False)
    ]
    assert torch.equal(*beams)
    found = model.generate(memory=memory, max_new_tokens=3, do_sample=True, num_return_sequences=4)
    assert found.shape == (4, 3)
    detailed = model.generate(memory=memory, return_dict_in_generate=True, **options)
    assert torch.equal(detailed.sequences, model.generate(memory=memory, **options))
    with pytest.raises(MnemoError, match="belongs to 2 texts: it cannot be continued in 3 rows"):
        model.generate(prompts, memory=model.read(tokens(2, 9)), **options)


def test_a_memory_file_continues_in_another_process(tmp_path: Path) -> None:
    model, x = build(), tokens(2, 17)
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "book.memory"
    memory = model.read(x)
    model.save_memory(path, memory)
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    loaded = again.load_memory(path)
    assert isinstance(loaded, TextMemory) and loaded.num_tokens == 17
    options: dict[str, Any] = dict(max_new_tokens=9, do_sample=False)
    assert torch.equal(again.generate(memory=loaded, **options), model.generate(memory=memory, **options))
    model.save_memory(path, model.read(x[:1, :1]))  # less than a segment: a memory that was never written
    assert_close(model.load_memory(path).state.started, torch.zeros(1, dtype=torch.int64))


def test_memory_files_are_bound_to_their_model_and_checked(tmp_path: Path) -> None:
    model, path = build(), tmp_path / "book.memory"
    model.save_memory(path, model.read(tokens(1, 17)))
    other = build(mask="block")
    with pytest.raises(MnemoError, match="memory file of another model"):
        other.load_memory(path)
    with torch.no_grad():
        other = build()
        other.memory_tokens.initial += 1
    with pytest.raises(MnemoError, match="memory file of another model"):
        other.load_memory(path)
    with pytest.raises(MnemoError, match="of another configuration"):
        build(tokens=4).save_memory(path, model.read(tokens(1, 17)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(MnemoError, match="checksum"):
        model.load_memory(path)
    save_file({"open": torch.zeros(1, 2, dtype=torch.int64)}, path)
    with pytest.raises(MnemoError, match="has no checksum"):
        model.load_memory(path)
    with pytest.raises(MnemoError, match="no such file|does not exist|is missing"):
        model.load_memory(tmp_path / "none")


def test_impossible_open_segments_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mnemo.files.tensor_file import write_tensors
    from mnemo.hf.memory_tokens import text_memory

    model, path = build(), tmp_path / "book.memory"
    model.save_memory(path, model.read(tokens(1, 17)))
    tensors = load_file(path)
    metadata = {
        "format": text_memory.FORMAT,
        "format_version": "1",
        "fingerprint": text_memory.fingerprint(model),
        "num_tokens": "17",
    }
    bad: list[tuple[Any, dict[str, str], str]] = [
        (torch.zeros(1, 6, dtype=torch.int64), {}, "does not fit this model"),
        (torch.full((1, 2), VOCABULARY), {}, "does not fit this model"),
        (torch.zeros(1, 0, dtype=torch.int64), {}, "does not fit this model"),
        (torch.zeros(2, dtype=torch.int64), {}, "has no open segment"),
        (torch.zeros(1, 2), {}, "another configuration"),
        (torch.zeros(2, 2, dtype=torch.int64), {}, "another configuration"),
        (tensors["open"], {"num_tokens": "-1"}, "number of tokens is '-1'"),
        (tensors["open"], {"format_version": "9"}, "has format_version 9"),
        (tensors["open"], {"format": "pt"}, "is not the memory file of a transformers model"),
    ]
    for opened, changed, message in bad:
        write_tensors(path, tensors | {"open": opened}, metadata | changed)
        with pytest.raises(MnemoError, match=message):
            model.load_memory(path)


def test_wrong_sources_are_refused_in_one_line() -> None:
    model = build()
    for source, message in (
        ([], "no tokens to read"),
        (torch.zeros(1, 0, dtype=torch.int64), "no tokens to read"),
        ("text", "needs a tokenizer"),
        (3, "expected token ids or text, not int"),
        (torch.zeros(1, 3), "expected token ids"),
        ([tokens(2, 3), tokens(1, 3)], "the text has 2 rows, but the next piece has 1"),
        ([1, VOCABULARY], "do not fit a vocabulary"),
        ([None], "not NoneType"),
    ):
        with pytest.raises(MnemoError, match=message):
            model.read(source)


STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.\n"


def test_text_pipeline_and_chat_continue_from_a_memory(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    model: Any = add_memory(tiny_llama().eval(), tokens=4, segment=16)
    book = tmp_path / "book.txt"
    book.write_text(STORY * 6)
    with book.open() as lines:
        memory = model.read(lines, tokenizer=tokenizer)
    later = tokenizer(STORY, add_special_tokens=False).input_ids
    assert memory.num_tokens == len(tokenizer(STORY).input_ids) + 5 * len(later)  # one <|start_story|> for the text
    assert memory.open[0].tolist() == later[-memory.open.shape[1] :]
    options: dict[str, Any] = dict(max_new_tokens=5, do_sample=False)
    prompt = tokenizer("She saw a dog", add_special_tokens=False, return_tensors="pt").input_ids
    expected = tokenizer.decode(model.generate(prompt, memory=memory, **options)[0, prompt.shape[1] :])
    write: Any = pipeline("text-generation", model=model, tokenizer=tokenizer)
    found = write("She saw a dog", memory=memory, add_special_tokens=False, return_full_text=False, **options)
    assert found[0]["generated_text"] == expected

    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    messages = [{"role": "user", "content": "Who loved to play?"}]
    chat = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=False)
    answer = tokenizer.decode(model.generate(chat, memory=memory, **options)[0, chat.shape[1] :])
    (reply,) = write(messages, memory=memory, **options)
    assert reply["generated_text"][-1] == {"role": "assistant", "content": answer}
