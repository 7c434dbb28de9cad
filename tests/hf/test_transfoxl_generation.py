"""Text of converted TransfoXL models is that of transformers 4.30.2: every call is one segment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.golden import GOLDEN
from helpers.tolerances import assert_close
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from mnemo.cli import main
from mnemo.errors import MnemoError
from mnemo.hf import MnemoConfig, from_run, to_run

FOLDERS = sorted(path for path in (GOLDEN / "transfo-xl-4.30").iterdir() if path.is_dir())
PROMPTS = (1, 5, 7, 11)
NEW = 16
EVERY_FOLDER = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that `mnemo convert` makes of a folder."""
    made: dict[Path, Path] = {}

    def convert(folder: Path) -> Path:
        if folder not in made:
            made[folder] = tmp_path_factory.mktemp("converted") / folder.name
            assert main(["convert", str(folder), str(made[folder])]) == 0
        return made[folder]

    return convert


def greedy(model: Any, prompt: Tensor, **options: Any) -> Any:
    return model.generate(
        prompt, max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True, **options
    )


@EVERY_FOLDER
@pytest.mark.parametrize("length", PROMPTS)
def test_greedy_text_and_scores_are_those_of_transformers_4(folder: Path, length: int, run_of: Any) -> None:
    expected = load_file(folder / "generated.safetensors")
    model = from_run(run_of(folder)).model
    assert model.config.segment > 1
    tokens = expected[f"{length}/tokens"]
    out = greedy(model, tokens[:, :length])
    assert torch.equal(out.sequences, tokens)
    assert_close(torch.stack(out.logits, 1).log_softmax(-1), expected[f"{length}/log_probs"])


def test_segments_of_a_fixed_length_give_other_text(run_of: Any) -> None:
    folder = GOLDEN / "transfo-xl-4.30" / "one-table"
    tokens = load_file(folder / "generated.safetensors")["7/tokens"]
    model = from_run(run_of(folder)).model
    model.config.decoding = "segments"
    for segment in (1, 128):
        model.config.segment = segment
        assert not torch.equal(greedy(model, tokens[:, :7]).sequences, tokens)


def test_rows_of_different_lengths_are_segments_of_their_own(run_of: Any) -> None:
    folder = GOLDEN / "transfo-xl-4.30" / "one-table"
    expected, model = load_file(folder / "generated.safetensors"), from_run(run_of(folder)).model
    pad = model.config.vocab_size
    rows = [expected[f"{length}/tokens"][0, :length] for length in PROMPTS]
    prompts = torch.stack([torch.nn.functional.pad(row, (max(PROMPTS) - len(row), 0), value=pad) for row in rows])
    found = greedy(model, prompts, attention_mask=(prompts != pad).long()).sequences[:, max(PROMPTS) :]
    assert torch.equal(found, torch.cat([expected[f"{length}/tokens"][:, length:] for length in PROMPTS]))


@EVERY_FOLDER
def test_the_command_line_writes_the_same(folder: Path, run_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = load_file(folder / "generated.safetensors")["7/tokens"][0]
    words = {index: word for word, index in json.loads((folder / "vocab.json").read_text()).items()}
    prompt = " ".join(words[int(token)] for token in tokens[:7])
    run = run_of(folder)
    capsys.readouterr()
    flags = ["--prompt", prompt, "--tokens", str(NEW), "--temperature", "0", "--no-save", "--json", "--device", "cpu"]
    assert main(["generate", str(run), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == [tokens[7:].tolist()]


def test_folders_and_runs_keep_it(run_of: Any, tmp_path: Path) -> None:
    model, _ = from_run(run_of(FOLDERS[0]))
    model.save_pretrained(tmp_path / "folder")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "folder").config.decoding == "calls"
    assert from_run(to_run(model, tmp_path / "run")).model.config.decoding == "calls"
    assert MnemoConfig().decoding == "segments"
    with pytest.raises(MnemoError, match="decoding"):
        MnemoConfig(decoding="tokens")  # type: ignore[arg-type]
    with pytest.raises(MnemoError, match="needs the cache"):
        model.generate(torch.tensor([[1]]), max_new_tokens=2, use_cache=False)


def test_a_text_is_continued_after_a_cache(run_of: Any) -> None:
    """Two calls are two segments: as in transformers 4, a text read in two calls is not the text read in one."""
    model = from_run(run_of(FOLDERS[1])).model
    text = torch.randint(model.config.vocab_size, (1, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        cache = model(text[:, :5], use_cache=True).past_key_values
        second = model(text[:, 5:], past_key_values=cache).logits
        _, state = model.model(text[:, :5], model.start_state(1))
        expected, _ = model.model(text[:, 5:], state)
    assert_close(second, model.model.logits(expected))
