"""The model of the transformers library against the core: losses, generation, padding, memory, files."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hf_models import SEGMENT, hf_model, in_own_memory
from helpers.marks import few
from helpers.mechanisms import MECHANISMS, few_first
from helpers.models import SMALL, random_tokens, read
from helpers.tiny_runs import tiny_run
from helpers.tolerances import assert_close
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache, TextStreamer, pipeline

import mnemo
from mnemo.cli.opened_run import open_with_tokenizer
from mnemo.cli.run_arguments import RunArgs
from mnemo.data.tokenizers import ByteTokenizer
from mnemo.errors import MnemoError
from mnemo.hf import MnemoCache, MnemoConfig, MnemoForCausalLM, MnemoTokenizer, from_run, to_run
from mnemo.hf.safe_folder import write_checksums
from mnemo.inference.generation import generate
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.positions import Learned

PADDING = SMALL["vocab_size"]
ADAPTIVE = EmbeddingConfig(cutoffs=(6, 14), div_val=2, dim=12, tie_projections=(False, True, True))


def prompts(*lengths: int) -> list[Tensor]:
    return [random_tokens(1, length, seed=length)[0] for length in lengths]


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids, mask = torch.full((len(rows), longest), PADDING), torch.zeros(len(rows), longest, dtype=torch.int64)
    for index, row in enumerate(rows):
        place = slice(longest - len(row), None) if side == "left" else slice(len(row))
        ids[index, place], mask[index, place] = row, 1
    return ids, mask


def greedy(model: Any, ids: Tensor, count: int = 11, **options: Any) -> Tensor:
    return model.generate(ids, max_new_tokens=count, do_sample=False, **options)[:, ids.shape[1] :]


@pytest.mark.parametrize("name", few_first())
def test_generate_equals_the_cores(name: str) -> None:
    model, ids = hf_model(**MECHANISMS[name]), random_tokens(2, 10)
    options = dict(output_logits=True, return_dict_in_generate=True)
    out = model.generate(ids, max_new_tokens=11, do_sample=False, **options)
    expected = generate(model.model, ids, num_tokens=11, segment=SEGMENT, temperature=0).tokens
    assert torch.equal(out.sequences[:, 10:], expected)
    assert_close(torch.stack(out.logits, 1), read(model.model, out.sequences[:, :-1], SEGMENT)[0][:, 9:].float())


PADDED = [(name, side) for name in ("xl-plan", "lookahead", "rmt-with-cache", "armt") for side in ("left", "right")]


@pytest.mark.parametrize(("name", "side"), few(PADDED, lambda name, side: (name == "armt") == (side == "right")))
def test_a_padded_batch_equals_its_rows(name: str, side: str) -> None:
    model, rows = hf_model(**MECHANISMS[name]), prompts(3, 9, 4, 1)
    ids, mask = padded(rows, side)
    options = dict(max_new_tokens=9, do_sample=False, output_logits=True, return_dict_in_generate=True)
    together = model.generate(ids, attention_mask=mask, **options)
    for index, row in enumerate(rows):
        alone = model.generate(row[None], **options)
        assert torch.equal(together.sequences[index, 9:], alone.sequences[0, len(row) :])
        assert_close(torch.stack(together.logits)[:, index], torch.stack(alone.logits)[:, 0])
    assert torch.equal(greedy(model, ids, 9), together.sequences[:, 9:])  # the padding's id says it too


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("grad", [True, False])
def test_logits_stand_where_their_tokens_stand(side: str, grad: bool) -> None:
    model, rows = hf_model(), prompts(3, 9, 4)
    ids, mask = padded(rows, side)
    with torch.set_grad_enabled(grad):
        logits = model(ids, attention_mask=mask).logits
    for index, row in enumerate(rows):
        assert_close(logits[index][mask[index].bool()], read(model.model, row[None], SEGMENT)[0][0])


@pytest.mark.parametrize("name", ["xl", "rmt", "armt", "infinite"])
def test_every_way_of_reading_gives_the_same_logits(name: str) -> None:
    model, ids = hf_model(**MECHANISMS[name]), random_tokens(2, 11)
    expected, _ = read(model.model, ids, SEGMENT)
    assert_close(model(ids).logits, expected)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            cache: Any = None
            pieces = []
            for part in ids.split([3, 1, 5, 2], 1):
                out = model(part, past_key_values=cache, use_cache=grad or None)
                cache = out.past_key_values
                pieces.append(out.logits)
            assert_close(torch.cat(pieces, 1), expected)
            assert cache.get_seq_length() == 11
            assert_close(model(ids, logits_to_keep=2).logits, expected[:, -2:])
            assert_close(model(ids, use_cache=False).logits, expected)


@pytest.mark.parametrize(
    "name", ["compressive", "compressive-dilated-long-range", "infinite-sticky", "lstm-below-xl", "qrnn-kernels"]
)
def test_weights_in_half_precision_read_memories_in_single_precision(name: str) -> None:
    model, ids = hf_model(dtype=torch.float32, **MECHANISMS[name]), random_tokens(2, 23)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, use_cache=False).logits
        model.to(torch.bfloat16)
        for use_cache in (False, True):
            logits = model(ids, attention_mask=mask, use_cache=use_cache).logits
            assert logits.dtype == torch.bfloat16
            assert (logits.float() - expected).norm() < 2e-2 * expected.norm()
    model.train()(ids, labels=ids).loss.backward()


def test_generation_without_a_cache_is_the_same() -> None:
    model, ids = hf_model(), random_tokens(2, 6)
    assert torch.equal(greedy(model, ids), greedy(model, ids, use_cache=False))


def test_beams_reorder_the_memory_row_by_row() -> None:
    model, (ids, mask) = hf_model(memory=3), padded(prompts(9, 5), "left")
    options = dict(max_new_tokens=13, num_beams=4, num_return_sequences=2, do_sample=False, attention_mask=mask)
    options |= dict(output_scores=True, return_dict_in_generate=True)
    found, expected = (model.generate(ids, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(found.sequences, expected.sequences)
    assert_close(torch.stack(found.scores), torch.stack(expected.scores))
    assert not torch.equal(found.sequences[::2, 9:], greedy(model, ids, 13, attention_mask=mask))


def test_sampling_draws_as_without_a_cache() -> None:
    model, ids = hf_model(), random_tokens(2, 6)
    texts = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        texts.append(model.generate(ids, max_new_tokens=12, do_sample=True, top_k=5, use_cache=use_cache))
    assert torch.equal(*texts)
    assert len(texts[0][0, 6:].unique()) > 3


def test_rows_that_end_early_leave_the_others_alone() -> None:
    model, rows = hf_model(), prompts(3, 9)
    ids, mask = padded(rows, "left")
    alone = greedy(model, rows[1][None], 12)[0]
    end = int(greedy(model, rows[0][None], 12)[0, 2])
    written = greedy(model, ids, 12, attention_mask=mask, eos_token_id=end)
    ends = (alone == end).nonzero()
    stop = int(ends[0]) + 1 if len(ends) else 12
    assert torch.equal(written[1][:stop], alone[:stop])
    assert (written[0][3:] == PADDING).all() or int(written[0, 2]) != end


def test_the_memory_goes_on_past_any_length_at_constant_size() -> None:
    model = hf_model(memory=6)
    sizes = []
    for count in (8, 40):
        out = model.generate(random_tokens(1, 5), max_new_tokens=count, return_dict_in_generate=True)
        state = out.past_key_values.state()
        sizes.append([leaf.shape for leaf in state.state[0]])
        assert out.past_key_values.get_seq_length() == 5 + count - 1
    assert sizes[0] == sizes[1]


def test_going_on_from_a_cache() -> None:
    """The whole text again, or only new text with a memory: both equal one call."""
    model, ids = hf_model(), random_tokens(1, 9)
    whole = model.generate(ids, max_new_tokens=12, do_sample=False)
    first = model.generate(ids, max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    memory = copy.deepcopy(first.past_key_values).memory()
    again = model.generate(first.sequences, max_new_tokens=7, do_sample=False, past_key_values=first.past_key_values)
    assert torch.equal(again, whole)
    continued = model.generate(first.sequences[:, -1:], max_new_tokens=7, do_sample=False, past_key_values=memory)
    assert torch.equal(continued[:, 1:], whole[:, -7:])


def test_a_memory_file_of_the_core_is_a_cache(tmp_path: Path) -> None:
    model, ids = hf_model(), random_tokens(1, 21)
    reading, _ = mnemo.inference.generation.read(model.model, ids[0, :13], segment=SEGMENT)
    mnemo.save_memory(tmp_path / "memory", model.model, reading, segment=SEGMENT)
    loaded = mnemo.load_memory(tmp_path / "memory", model.model).memory
    written = greedy(model, ids[:, 13:], past_key_values=MnemoCache(loaded))
    assert torch.equal(written, greedy(model, ids))
    with torch.no_grad():
        cache = model(ids).past_key_values
    assert torch.equal(
        generate(model.model, state=cache.reading(), num_tokens=11, segment=SEGMENT, temperature=0).tokens, written
    )


def test_a_cache_selects_repeats_forgets_and_cannot_be_cropped() -> None:
    model, ids = hf_model(), random_tokens(2, 7)
    with torch.no_grad():
        cache = model(ids).past_key_values
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([3, 0]))
        swapped = model(random_tokens(2, 3, seed=9).flip(0), past_key_values=cache).logits
        expected = model(torch.cat([ids, random_tokens(2, 3, seed=9)], 1)).logits[:, 7:]
    assert_close(swapped.flip(0), expected)
    assert not cache.is_croppable and cache.batch_size == 2 and cache.get_max_length() == -1
    with pytest.raises(MnemoError, match="cannot be cropped"):
        cache.crop(-1)
    cache.reset()
    assert cache.get_seq_length() == 0 and not cache.is_initialized


def test_labels_give_the_librarys_loss() -> None:
    model, (ids, mask) = hf_model(embedding=ADAPTIVE), padded(prompts(3, 9, 6), "right")
    labels = torch.where(mask.bool(), ids, -100)
    out = model(ids, attention_mask=mask, labels=labels)
    flat = model(ids, attention_mask=mask).logits[:, :-1].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(flat, labels[:, 1:].flatten(), ignore_index=-100)
    assert_close(out.loss, expected)
    total = model(ids, attention_mask=mask, labels=labels, num_items_in_batch=30).loss
    assert_close(total, expected * (labels[:, 1:] != -100).sum() / 30)
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    assert_close(model(ids, attention_mask=mask, shift_labels=shifted).loss, expected)
    assert model.train()(ids, attention_mask=mask, labels=labels).logits is None
    assert model(ids, attention_mask=mask, labels=labels, skip_logits=False).logits is not None


@pytest.mark.parametrize("name", ["xl", "rmt"])
def test_gradients_equal_the_cores(name: str) -> None:
    """Those of a sample of several segments: memory tokens carry gradient through all of them."""
    model, ids = hf_model(**MECHANISMS[name]), random_tokens(2, 11)
    model(ids, labels=ids).loss.backward()
    found = {key: parameter.grad.clone() for key, parameter in model.model.named_parameters()}
    model.zero_grad()
    state, nll = None, torch.zeros((), dtype=torch.float64)
    targets = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-1)
    for part, goals in zip(ids.split(SEGMENT, 1), targets.split(SEGMENT, 1), strict=True):
        out, state = model.model(part, state)
        nll = nll + model.model.loss(out, goals).sum()
    (nll / 20).backward()
    for key, parameter in model.model.named_parameters():
        assert_close(found[key], parameter.grad)


@pytest.mark.parametrize(
    "changes",
    [dict(), dict(embedding=ADAPTIVE), dict(embedding=EmbeddingConfig(tie_weights=False)), MECHANISMS["rmt"]],
    ids=["tied", "adaptive", "untied", "memory-tokens"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saving_and_loading_is_bitwise(changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    model = hf_model(dtype=dtype, start="zeros", **changes)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is MnemoForCausalLM and type(AutoConfig.from_pretrained(tmp_path)) is MnemoConfig
    assert loaded.config.core == model.config.core and loaded.config.start == "zeros"
    mine, other = model.state_dict(), loaded.state_dict()
    assert mine.keys() == other.keys() == load_file(tmp_path / "model.safetensors").keys()
    assert all(torch.equal(mine[name], other[name]) and mine[name].dtype == other[name].dtype for name in mine)
    ids = random_tokens(1, 7)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, in_own_memory(loaded)(ids).logits)
    assert loaded.generation_config.pad_token_id == PADDING


def test_a_text_may_start_from_zeros() -> None:
    model, ids = hf_model(start="zeros"), random_tokens(2, 9)
    state, pieces = model.model.zeros(2), []
    for part in ids.split(SEGMENT, 1):
        out, state = model.model(part, state)
        pieces.append(model.model.logits(out))
    expected = torch.cat(pieces, 1)
    assert_close(model(ids).logits, expected)
    with torch.no_grad():
        assert_close(model(ids).logits, expected)


@pytest.mark.parametrize("start", ["empty", "zeros"])
@pytest.mark.parametrize("name", few_first())
def test_rows_that_begin_a_document_have_the_memory_of_a_new_text(name: str, start: str) -> None:
    model, ids = hf_model(start=start, **MECHANISMS[name]), random_tokens(2, 9)
    before = random_tokens(2, 9, seed=5)
    for cached in (False, True):
        cache = MnemoCache(model.start_state(2, cached=cached))
        model(before, labels=before, past_key_values=cache)
        kept = copy.deepcopy(cache)
        starts = torch.tensor([False, True])
        logits = model(ids, labels=ids, starts=starts, past_key_values=cache).logits
        assert_close(logits[1], model(ids).logits[1])
        assert_close(logits[0], model(ids, labels=ids, past_key_values=kept).logits[0])
        assert_close(model(ids, starts=~starts).logits, model(ids).logits)


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    model = hf_model(dtype=torch.float32)
    model.save_pretrained(tmp_path)
    weights, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    first = next(iter(weights))
    for changed, message in (
        ({name: tensor for name, tensor in weights.items() if name != first}, "has no tensor"),
        (weights | {"model.more": weights[first]}, "has an unexpected tensor 'model.more'"),
    ):
        save_file(
            {name: tensor.clone() for name, tensor in changed.items()}, tmp_path / "model.safetensors", {"format": "pt"}
        )
        with pytest.raises(MnemoError, match="model.safetensors is not the file that was saved"):
            MnemoForCausalLM.from_pretrained(tmp_path)
        write_checksums(tmp_path)
        with pytest.raises(MnemoError, match=message):
            MnemoForCausalLM.from_pretrained(tmp_path)
    config["model"]["dime"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(MnemoError, match="did you mean 'dim'"):
        AutoConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize("load", [MnemoForCausalLM.from_pretrained, AutoModelForCausalLM.from_pretrained])
def test_a_pickle_is_refused(load: Any, tmp_path: Path) -> None:
    model = hf_model(dtype=torch.float32)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(MnemoError, match="pytorch_model.bin is a pickle: it could run code, so it is not loaded"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(inputs_embeds=torch.zeros(1, 2, 12)), "inputs_embeds are not supported"),
        (dict(past_key_values=DynamicCache()), "DynamicCache; a Mnemo model needs a MnemoCache"),
        (dict(output_attentions=True), "attentions and hidden states"),
        (dict(position_ids=torch.zeros(1, 2)), "does not accept the argument 'position_ids'"),
        (dict(attention_mask=torch.ones(1, 1)), "does not fit"),
        (dict(labels=torch.ones(1, 3, dtype=torch.int64)), "do not fit"),
        (dict(input_ids=torch.tensor([[1, PADDING + 1]])), "outside the vocabulary"),
    ],
)
def test_what_the_model_does_not_take_is_one_clear_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MnemoError, match=message):
        hf_model()(**{"input_ids": torch.tensor([[1, 2]])} | options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(segment=0), "segment length 0"),
        (dict(start="zero"), "did you mean 'zeros'"),
        (dict(format_version=2), "format_version 2"),
        (dict(model={"dim": 13}), "must be even"),
    ],
)
def test_a_wrong_configuration_is_one_clear_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MnemoError, match=message):
        MnemoConfig(**arguments)


def test_assisted_decoding_and_new_words_are_refused() -> None:
    model, ids = hf_model(), random_tokens(1, 4)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(ids, max_new_tokens=3, assistant_model=model)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(ids, max_new_tokens=3, prompt_lookup_num_tokens=2)
    with pytest.raises(MnemoError, match="vocabulary of a Mnemo model is fixed"):
        model.resize_token_embeddings(30)


def test_an_empty_prompt_is_one_clear_error() -> None:
    empty: Any = MnemoTokenizer.of(ByteTokenizer())("", return_tensors="pt")
    for prompt in (empty, {"inputs": torch.zeros(1, 0, dtype=torch.int64)}):
        with pytest.raises(MnemoError, match="cannot generate: the prompt is empty"):
            hf_model().generate(**prompt, max_new_tokens=5)


def test_a_cache_of_other_rows_is_refused() -> None:
    model = hf_model()
    with torch.no_grad():
        cache = model(random_tokens(1, 4)).past_key_values
        with pytest.raises(MnemoError, match="1 rows, the input 3: cache.batch_repeat_interleave"):
            model(random_tokens(3, 4), past_key_values=cache)
    with pytest.raises(MnemoError, match="holds an open segment: continue without labels, in evaluation mode"):
        model(random_tokens(1, 4), labels=random_tokens(1, 4), past_key_values=cache)
    with pytest.raises(MnemoError, match="holds an open segment"):
        model.train()(random_tokens(1, 4), past_key_values=cache)


def test_nothing_but_padding_changes_nothing() -> None:
    model, ids = hf_model(), random_tokens(1, 6)
    with torch.no_grad():
        cache = model(ids).past_key_values
        model(torch.full((1, 3), PADDING), past_key_values=cache)
        after = model(ids[:, :1], past_key_values=cache).logits
        assert_close(after, model(torch.cat([ids, ids[:, :1]], 1)).logits[:, -1:])
    assert model(torch.full((1, 3), PADDING)).logits.shape == (1, 3, PADDING)


@pytest.mark.parametrize("unit", ["bytes", "chars", "words", "bpe"])
def test_runs_become_folders_and_runs_again(unit: Any, tmp_path: Path) -> None:
    run = tiny_run(unit)
    from_run(run).save_pretrained(tmp_path / "folder")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "folder")
    opened = open_with_tokenizer(RunArgs(run=str(run), device="cpu"))
    text = "the cat saw the dog\nsat under a"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    expected = torch.from_numpy(opened.tokenizer.encode(text).astype("int64"))
    assert torch.equal(ids[0], expected)
    written = greedy(model, ids, 12)
    core = generate(opened.run.model, [expected], num_tokens=12, segment=opened.run.recipe.train.segment, temperature=0)
    assert torch.equal(written, core.tokens)
    assert tokenizer.decode(written[0]) == opened.tokenizer.decode(written[0].tolist())
    to_run(model, tmp_path / "run", tokenizer)
    back = open_with_tokenizer(RunArgs(run=str(tmp_path / "run"), device="cpu"))
    assert back.tokenizer == opened.tokenizer and back.run.recipe.model == opened.run.recipe.model
    assert all(map(torch.equal, back.run.model.state_dict().values(), opened.run.model.state_dict().values()))
    with pytest.raises(MnemoError, match="exists"):
        to_run(model, tmp_path / "run", tokenizer)


def test_the_tokenizer_pads_and_keeps_names_of_special_tokens_as_text(tmp_path: Path) -> None:
    model, tokenizer = from_run(tiny_run("bytes"))
    assert isinstance(tokenizer, MnemoTokenizer)
    both = tokenizer(["the cat", "a"], padding=True, return_tensors="pt")
    assert both["attention_mask"].tolist() == [[1] * 7, [0] * 6 + [1]]
    assert (both["input_ids"][1, :6] == tokenizer.vocab_size).all() and tokenizer.pad_token_id == tokenizer.vocab_size
    alone = greedy(model, tokenizer("a", return_tensors="pt")["input_ids"])
    assert torch.equal(greedy(model, both["input_ids"], attention_mask=both["attention_mask"])[1], alone[0])
    assert tokenizer("<|padding|>")["input_ids"] == [*b"<|padding|>"]
    with pytest.raises(MnemoError, match="mnemo_tokenizer.json"):
        MnemoTokenizer()


def test_the_pipeline_and_streaming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "folder"
    from_run(tiny_run("chars")).save_pretrained(folder)
    write: Any = pipeline("text-generation", model=str(folder))
    texts = write(["the cat", "a"], max_new_tokens=9, do_sample=False, batch_size=2)
    single = write("a", max_new_tokens=9, do_sample=False)
    assert texts[1][0]["generated_text"] == single[0]["generated_text"] and len(single[0]["generated_text"]) == 10
    model, tokenizer = write.model, write.tokenizer
    capsys.readouterr()
    ids = tokenizer("a", return_tensors="pt")["input_ids"]
    model.generate(ids, max_new_tokens=9, do_sample=False, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out.rstrip("\n") == single[0]["generated_text"].rstrip("\n")


def test_without_the_library_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None\nimport mnemo.hf"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert "mnemo.hf needs the transformers library, version 5" in last
    assert last.endswith("in a checkout of Mnemo, pip install '.[hf]'")
    assert "transformers" not in sys.modules["mnemo.model"].__dict__


def test_learned_positions_are_read_in_segments_too() -> None:
    model = hf_model(memory=0, positions=Learned(length=SEGMENT))
    ids = random_tokens(2, 10)
    assert_close(model(ids).logits, read(model.model, ids, SEGMENT)[0])
