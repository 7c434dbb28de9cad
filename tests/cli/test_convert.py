"""`mnemo convert` from end to end: pickles in their own process, folders that the other verbs take, scores."""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import published_files as files
from helpers import published_xl as xl
from helpers import ranks
from helpers.edited_files import edit_json
from helpers.tiny_runs import tiny_run

from mnemo.cli import main
from mnemo.data.prepare import prepare
from mnemo.errors import MnemoError
from mnemo.hf import from_run
from mnemo.inference.generation import generate
from mnemo.interop.convert import restricted_loader
from mnemo.interop.convert import weight_files as file_contents
from mnemo.storage.run_folder import open_run

CONFIG: dict[str, Any] = {**xl.DEFAULTS, "n_token": 12, "tgt_len": 4}
SETTINGS = ("--norm", "post", "--clamp", 0, "--no-same-length")
WORDS = ["<eos>", "<unk>", *"a b c d e f g h i j".split()]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the processes that were started."""
    commands, real = [], subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return real(command, **options)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restricted process is forked from one that has imported torch, which saves seconds."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        source, folder = map(Path, command[-2:])
        process = ranks.parent().Process(target=restricted_loader.main, args=(source, folder))
        process.start()
        process.join()
        return subprocess.CompletedProcess(command, process.exitcode, "", "")

    monkeypatch.setattr(subprocess, "run", run)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("".join(" ".join(WORDS[2 + (i * k) % 10] for k in range(1, 9)) + "\n" for i in range(1, 120)))
    made = prepare("convert-words", text, "words")
    assert sorted(made.tokenizer.words) == sorted(WORDS)  # type: ignore[union-attr]
    return made.name


def convert(*words: object) -> int:
    return main(["convert", *map(str, words)])


def failed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line of an error; nothing is written."""
    assert convert(*words) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("mnemo: ")]
    assert out == "" and len(lines) == 1
    return lines[0]


def folder_of(path: Path, symbols: list[str] | None = None) -> Path:
    files.hugging_face(path, CONFIG, {name: value.float() for name, value in files.full(CONFIG).items()})
    if symbols is not None:
        (path / "vocab.json").write_text(json.dumps(symbols))
    return path


class Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def test_no_code_of_a_malicious_pickle_runs(tmp_path: Path, started: Any, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "attacked"
    pickle.loads(pickle.dumps(Attack(target)))
    assert target.exists(), "the pickle would do what it is meant to"
    target.rmdir()
    torch.save({"word_emb.emb_layers.0.weight": Attack(target)}, tmp_path / "model.pt")
    (tmp_path / "raw.bin").write_bytes(pickle.dumps(Attack(target)))
    for name in ("model.pt", "raw.bin"):
        line = failed(capsys, tmp_path / name, tmp_path / "out", "--memory", 4)
        assert "would call posix.mkdir" in line or "is a Python pickle" in line
        assert "trust" not in line and "weights_only" not in line
    assert not target.exists() and not (tmp_path / "out").exists()
    assert [command[0] for command in started] == [sys.executable] * 2
    assert all(restricted_loader.__file__ in command for command in started)


@pytest.mark.usefixtures("forked")
def test_a_whole_pickled_module_is_refused_with_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with a_module("mem_transformer", "MemTransformerLM") as made:
        torch.save(made(), tmp_path / "model.pt")
    line = failed(capsys, tmp_path / "model.pt", tmp_path / "out")
    assert "mem_transformer.MemTransformerLM" in line
    assert (
        "model = torch.load('model.pt', map_location='cpu', weights_only=False); torch.save(model.state_dict()," in line
    )


@pytest.mark.usefixtures("forked")
def test_a_file_that_is_no_state_dict_is_told_for_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"a": [1.0, 2.0]}))
    line = failed(capsys, tmp_path / "plain.pkl", tmp_path / "out")
    assert "is a Python pickle, not a state dict written by torch.save" in line
    assert "weights_only" not in line and "torch.save(model.state_dict()" in line
    torch.save([1, 2], tmp_path / "list.pt")
    assert "list.pt holds a list, not a state dict" in failed(capsys, tmp_path / "list.pt", tmp_path / "out")


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_plain_pickles_are_known_by_their_instructions(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps({"a": [1, "b"]}, protocol=protocol))
    assert restricted_loader.is_plain_pickle(path)
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=protocol > 1)
    assert not restricted_loader.is_plain_pickle(path)
    path.write_text("hello world")
    assert not restricted_loader.is_plain_pickle(path)


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("mem_transformer.MemTransformerLM", True),
        ("torch.nn.modules.linear.Linear", True),
        ("__main__.Model", True),
        ("numpy._core.multiarray._reconstruct", True),
        ("posix.system", False),
        ("eval", False),
        ("__builtin__.eval", False),
        ("subprocess.Popen", False),
        ("commands.Popen", False),
        ("torch.hub.load", False),
        ("numpy.testing._private.utils.runstring", False),
    ],
)
def test_loading_it_all_the_same_is_offered_for_models_only(name: str, offered: bool) -> None:
    line = str(file_contents._refusal(Path("model.pt"), {"problem": "class", "name": name}))
    assert name in line and ("If you trust it" in line) == offered
    assert offered or f"would call {name}" in line


class a_module:
    """A class that can be pickled under another module's name, and only while this lasts."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __enter__(self) -> type:
        for part in (self.module.partition(".")[0], self.module):
            sys.modules[part] = types.ModuleType(part)
        made = type(self.name, (), {"__module__": self.module})
        setattr(sys.modules[self.module], self.name, made)
        return made

    def __exit__(self, *error: object) -> None:
        for part in {self.module.partition(".")[0], self.module}:
            del sys.modules[part]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system tells no sizes")
@pytest.mark.usefixtures("forked")
def test_a_file_cannot_ask_for_all_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"word_emb.emb_layers.0.weight": torch.zeros(1).expand(10**11)}, tmp_path / "bomb.pt")
    assert "more memory than its size explains" in failed(capsys, tmp_path / "bomb.pt", tmp_path / "out")


@pytest.mark.usefixtures("forked")
def test_a_truncated_state_dict_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(files.full(CONFIG), tmp_path / "model.pt")
    (tmp_path / "model.pt").write_bytes((tmp_path / "model.pt").read_bytes()[:-500])
    assert "damaged, truncated" in failed(capsys, tmp_path / "model.pt", tmp_path / "out", "--memory", 4)


def test_a_state_dict_of_2019_converts_with_its_ties(tmp_path: Path, started: Any) -> None:
    config = {**CONFIG, **files.ADAPTIVE}
    weights = {f"module.{name}": value for name, value in files.full(config).items()}
    weights["module.pos_emb.inv_freq"] = torch.ones(4)
    torch.save(weights, tmp_path / "weights.pt", _use_new_zipfile_serialization=False)
    assert convert(tmp_path / "weights.pt", tmp_path / "out", "--memory", 5, "--segment", 4, *SETTINGS) == 0
    assert len(started) == 1
    run = open_run(tmp_path / "out", device="cpu")
    assert run.recipe.model.embedding.tie_weights and run.recipe.model.embedding.ties() == (False, True, True)
    assert torch.equal(run.model.state_dict()["embedding.tables.1"], weights["module.word_emb.emb_layers.1.weight"])


@pytest.mark.usefixtures("forked")
def test_nvidias_checkpoint_is_read_with_its_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {name: value.float() for name, value in files.full(CONFIG).items()}
    checkpoint = files.nvidia(CONFIG, weights) | {"optimizer_state": {"state": {0: {"exp_avg": torch.zeros(3)}}}}
    with a_module("utils.vocabulary", "Vocab") as vocab:
        words = vocab()
        words.idx2sym, words.sym2idx = WORDS, {word: i for i, word in enumerate(WORDS)}
        checkpoint |= {"args": argparse.Namespace(lr=0.01, work_dir="LM"), "vocab": words, "epoch": 3}
        torch.save(checkpoint, tmp_path / "checkpoint_best.pt")
    assert convert(tmp_path / "checkpoint_best.pt", tmp_path / "out", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["format"], told["tokenizer"]) == ("nvidia", "word")
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text())["tokenizer"]["words"] == WORDS
    assert open_run(tmp_path / "out", device="cpu").recipe.train.segment == CONFIG["tgt_len"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("converted")
    from mnemo.data.corpus import Corpus

    words = list(Corpus.open(corpus).tokenizer.words)  # type: ignore[union-attr]
    folder_of(folder / "hf", words)
    assert convert(folder / "hf", folder / "out", "--corpus", corpus) == 0
    yield folder, corpus


def test_the_other_verbs_take_the_folder(converted: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(converted[0] / "out")
    assert main(["eval", folder, "--device", "cpu", "--batch", "2", "--json"]) == 0
    score = json.loads(capsys.readouterr().out)["score"]
    assert score["memory"] == CONFIG["mem_len"] and score["tokens"] > 50
    assert main(["generate", folder, "--prompt", "a b", "--tokens", "5", "--device", "cpu"]) == 0
    assert main(["info", folder, "--json"]) == 0
    steps = ["--train.steps", "1", "--train.batch", "2", "--train.device", "cpu", "--evaluation.batch", "2"]
    started = ["train", "--from", folder, "--runs", str(converted[0]), "--name", "more", *steps]
    assert main(started) == 0


def test_it_scores_and_states_the_protocol(
    converted: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, corpus = converted
    options = ("--eval", corpus, "--split", "valid", "--batch", 2, "--device", "cpu")
    assert convert(folder / "hf", tmp_path / "a", *options) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("valid: ") and " ppl over " in last
    assert last.endswith("(rows 2, segment 4, memory 5, clamp none, same length off, memory starts full of zeros)")
    losses = {}
    for start in ("empty", "zeros"):
        assert convert(folder / "hf", tmp_path / start, *options, "--start", start, "--json") == 0
        losses[start] = json.loads(capsys.readouterr().out)["score"]["loss"]
    assert main(["eval", str(tmp_path / "a"), "--device", "cpu", "--batch", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["starts_from"] == "zeros"
    assert losses["zeros"] == told["score"]["loss"] != losses["empty"]
    assert main(["eval", str(tmp_path / "a"), "--device", "cpu", "--batch", "2", "--start", "empty", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["score"]["loss"] == losses["empty"]


def test_a_converted_run_starts_from_what_its_own_code_starts_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run = Path(__file__).parents[1] / "golden" / "transfo-xl-4.30" / "adaptive", tmp_path / "run"
    assert convert(source, run) == 0
    assert "the published code starts from a memory full of zeros" in capsys.readouterr().out
    words = ["generate", str(run), "--prompt", "w2", "--tokens", "30", "--temperature", "0", "--no-save"]
    assert main([*words, "--device", "cpu", "--json"]) == 0
    (tokens,) = json.loads(capsys.readouterr().out)["tokens"]
    model, tokenizer = from_run(run)
    assert tokenizer is not None
    prompt = torch.from_numpy(tokenizer.core.encode("w2").astype("int64"))[None]
    expected = model.generate(prompt, max_new_tokens=30, do_sample=False)  # type: ignore[operator]
    assert tokens == expected[0, prompt.shape[1] :].tolist()
    opened = open_run(run, device="cpu")
    assert opened.start == "zeros" and min(opened.model.memory_lengths(opened.first_state(1))) > 0
    empty = generate(opened.model, prompt, num_tokens=30, segment=opened.recipe.train.segment, temperature=0)
    assert tokens != empty.tokens[0].tolist()


def test_a_run_that_starts_from_something_else_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(folder_of(tmp_path / "hf", WORDS), tmp_path / "run") == 0
    edit_json(tmp_path / "run" / "recipe.json", lambda header: header["source"].update(starts_from="ones"))
    with pytest.raises(MnemoError, match="starts_from"):
        open_run(tmp_path / "run", device="cpu")


def test_a_run_without_a_corpus_names_the_ways_to_score_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(folder_of(tmp_path / "hf", WORDS), tmp_path / "run") == 0
    assert main(["eval", str(tmp_path / "run"), "--device", "cpu"]) == 2
    line = capsys.readouterr().err
    assert "was converted without a corpus" in line and "--corpus" in line and "--eval FILE" in line


def test_a_text_is_scored_in_the_models_own_symbols(
    converted: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("a b c never-seen d\n" * 9)
    options = ("--eval", tmp_path / "text.txt", "--batch", 2, "--device", "cpu", "--json")
    assert convert(converted[0] / "hf", tmp_path / "out", *options) == 0
    score = json.loads(capsys.readouterr().out)["score"]
    assert (score["tokens"], score["split"]) == (52, "text.txt")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "text.txt").read_bytes())))
    assert convert(converted[0] / "hf", tmp_path / "piped", "--eval", "-", *options[2:]) == 0
    piped = json.loads(capsys.readouterr().out)["score"]
    assert (piped["tokens"], piped["split"], piped["loss"]) == (52, "stdin", score["loss"])
    line = failed(capsys, folder_of(tmp_path / "bare"), tmp_path / "none", "--eval", tmp_path / "text.txt")
    assert "have no vocabulary" in line


def test_a_vocabulary_of_other_words_is_not_scored(
    converted: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "hf", WORDS[::-1])
    line = failed(capsys, folder, tmp_path / "out", "--eval", converted[1])
    assert "has other symbols than the model: id 0" in line
    assert not (tmp_path / "out").exists()


def test_without_a_vocabulary_the_corpus_names_the_symbols(
    converted: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "hf")
    assert convert(folder, tmp_path / "out", "--corpus", converted[1]) == 0
    assert "taken as that of corpus" in capsys.readouterr().out
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert "12 symbols, and the weights 13" in _other_size(tmp_path, converted[1], capsys)


def _other_size(tmp_path: Path, corpus: str, capsys: pytest.CaptureFixture[str]) -> str:
    config = {**CONFIG, "n_token": 13}
    files.hugging_face(tmp_path / "larger", config, files.full(config))
    return failed(capsys, tmp_path / "larger", tmp_path / "none", "--eval", corpus)


def test_a_folder_that_exists_is_left_alone(
    converted: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "note").write_text("mine")
    assert "exists" in failed(capsys, converted[0] / "hf", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_a_trained_run_goes_to_hugging_face_and_back_bitwise(tmp_path: Path) -> None:
    run = tiny_run()
    assert convert(run, tmp_path / "hf", "--to", "hf") == 0
    assert convert(tmp_path / "hf", tmp_path / "back") == 0
    before, after = (open_run(path, device="cpu") for path in (run, tmp_path / "back"))
    assert before.model.state_dict().keys() == after.model.state_dict().keys()
    for name, tensor in before.model.state_dict().items():
        assert torch.equal(tensor, after.model.state_dict()[name])
    kept = [json.loads((path / "tokenizer.json").read_text())["tokenizer"] for path in (run, tmp_path / "back")]
    assert kept[0]["unit"] == kept[1]["unit"] and kept[0]["symbols"] == kept[1]["symbols"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--memory", -1), "mem_len -1 is too small"),
        (("--cutoffs", "5,x"), "--cutoffs takes numbers"),
        (("--eval", "nothing-here"), "nothing-here"),
        (("--eval", "python", "--to", "hf"), "--eval scores runs of mnemo only"),
        (("--vocab", "vocab.bin"), "CVE-2023-6730"),
    ],
)
def test_wrong_flags_are_one_line(
    words: tuple[Any, ...], message: str, converted: tuple[Path, str], tmp_path: Path, capsys: Any
) -> None:
    assert message in failed(capsys, converted[0] / "hf", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()
