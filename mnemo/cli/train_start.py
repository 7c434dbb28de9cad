"""What a new run starts from: a preset, the user's own text, a prepared corpus, or another run."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mnemo.cli import overrides
from mnemo.cli.console import STDIN, piped_text
from mnemo.cli.prepare import print_files
from mnemo.config import to_json
from mnemo.errors import SIMILAR, MnemoError, unknown
from mnemo.memory.own import load_installed
from mnemo.recipes.config_file import ConfigFile, apply_config, load_config
from mnemo.recipes.memories import known_memories, memory_kind, memory_recipe
from mnemo.recipes.own_text import own_text_recipe
from mnemo.recipes.presets import LISTING, PRESETS, documentation, full_name, preset
from mnemo.recipes.recipe import Recipe
from mnemo.recipes.tied_lengths import tie_lengths
from mnemo.storage.run_header import RECIPE, RUNS, find_run, load_header
from mnemo.training.launch import is_alone, is_main

if TYPE_CHECKING:
    from mnemo.data.own_text import OwnText


class Given(NamedTuple):
    """The arguments that decide about the recipe before its fields are overridden."""

    name: str | None
    """The first word: a preset, a text or a corpus."""
    data: str | None
    memory: str | None
    source: str | None
    """The run of --from."""
    runs: Path
    device: str
    encoding: str | None
    binary: bool
    config: ConfigFile | None = None


class Start(NamedTuple):
    name: str
    """What runs are named after."""
    about: str
    recipe: Recipe
    preset: str | None = None
    text: OwnText | None = None
    """The user's own text, whose corpus is to be prepared."""
    whole_file: bool = False
    """Whether the recipe comes from a configuration file alone."""


class TextOrCorpus(NamedTuple):
    name: str
    about: str
    corpus: str
    num_train: int
    num_valid: int
    text: OwnText | None


def find_start(given: Given, stack: ExitStack) -> Start:
    """Find the recipe that a new run starts from; temporary files are kept until `stack` closes."""
    for problem in load_installed():
        _say(f"mnemo: warning: {problem}")
    start = _configured(_start_without_memory(given, stack), given)
    recipe = start.recipe if given.memory is None else memory_recipe(start.recipe, given.memory)
    kinds = f"Memory of a paper in place of the recipe's: --memory {{{','.join(known_memories())}}}"
    return start._replace(recipe=recipe, about=f"{start.about}\n\n{kinds}")


def take_given(argv: Sequence[str]) -> tuple[Given, list[str]]:
    """Split a command line into the arguments that decide about the recipe, and all others."""
    named = bool(argv) and (argv[0] == STDIN or not argv[0].startswith("-"))
    name, rest = (argv[0], list(argv[1:])) if named else (None, list(argv))
    if not named:
        _refuse_misplaced(rest)
    binary, rest = "--binary" in rest, [word for word in rest if word != "--binary"]
    data, rest = overrides.take("--data", rest)
    short, rest = overrides.take("--memory", rest)
    memory, rest = overrides.take("--model.memory", rest)
    encoding, rest = overrides.take("--encoding", rest)
    source, _ = overrides.take("--from", rest)
    runs, _ = overrides.take("--runs", rest)
    device, _ = overrides.take("--train.device", rest)
    file, rest = overrides.take("--config", rest)
    config = None if file is None else load_configuration(Path(file).expanduser())
    given = Given(
        name=name,
        data=data,
        memory=memory if short is None else short,
        source=source,
        runs=Path(runs or RUNS),
        device=device or "auto",
        encoding=encoding,
        binary=binary,
        config=config,
    )
    return given, rest


def _refuse_misplaced(argv: Sequence[str]) -> None:
    """Raise an error if a preset or a text follows the options."""
    for before, word in pairwise(["-", *argv]):
        is_value = before.startswith("-")
        if not is_value and not word.startswith("-") and (word in PRESETS or Path(word).is_file()):
            raise MnemoError(f"name '{word}' before the options: mnemo train {word} [options]")


def load_configuration(path: Path) -> ConfigFile:
    """The content of a configuration file; of a run's recipe.json, with the changes on resume."""
    if path.name != RECIPE or not path.is_file():
        return load_config(path)
    return ConfigFile(path, None, None, {**to_json(load_header(path.parent).recipe)})


def _configured(start: Start, given: Given) -> Start:
    """The start with the values of a configuration file; a text on the command line takes precedence."""
    if given.config is None or start.whole_file:
        return start
    recipe = apply_config(start.recipe, given.config)
    if given.data is not None or (given.name is not None and start.preset is None):
        before = start.recipe.data
        recipe = replace(recipe, data=replace(recipe.data, corpus=before.corpus, task=before.task))
    return start._replace(recipe=recipe)


def _start_without_memory(given: Given, stack: ExitStack) -> Start:
    named = given.name
    if named is None and given.source is None and given.config is not None:
        named = given.config.preset
    name = None if named is None else _preset_name(named)
    if given.name is None and named is not None and name is None:
        raise unknown(f"preset in {given.config.path}" if given.config else "preset", named, PRESETS, LISTING)
    if given.name is not None and name is None and given.data is not None:
        raise MnemoError(f"name one text: '{given.name}', or the one of --data, '{given.data}'")
    word = given.data if name is not None or given.name is None else given.name
    found = None if word is None else _text_or_corpus(word, given, stack)
    if name is not None:
        return _with_data(_preset_start(name), found)
    if given.source is not None:
        return _with_data(_run_start(given.source, given.runs), found)
    if given.config is not None and given.config.has_model:
        return _with_data(_file_start(given.config), found)
    if found is None and given.config is not None:
        raise MnemoError(
            f"{given.config.path} does not say what to train: name a preset (mnemo train PRESET --config FILE, or "
            'preset = "tiny-bytes" in the file) or your text'
        )
    if found is None:
        raise MnemoError(
            "name a preset or your text: mnemo train PRESET, or mnemo train mybook.txt; mnemo train --list shows the "
            "presets"
        )
    return Start(found.name, found.about, _recipe_for(found, given.device), text=found.text)


def _preset_name(given: str) -> str | None:
    """The name of a preset; that of a memory stands for a small preset, unless there is a file of that name."""
    plain, exists = given.partition("@")[0], Path(given).exists()
    if plain in PRESETS:
        if exists:
            _say(f"mnemo: '{given}' is a preset and a file: taking the preset; ./{given} is the file")
        return given
    if memory_kind(plain) is None or exists:
        return None
    name = full_name(given)
    _say(f"{given}: training {name}; mnemo train --list {given} shows related presets")
    return name


def _say(line: str) -> None:
    if is_main():
        print(line, file=sys.stderr)


def _preset_start(name: str) -> Start:
    return Start(name.replace("@", "-"), cleandoc(documentation(name)), preset(name), preset=name)


def _run_start(source: str, runs: Path) -> Start:
    folder = find_run(source, runs)
    recipe = tie_lengths(load_header(folder).recipe)
    return Start(folder.name, f"Start from the weights of {folder}.", recipe, preset=folder.name)


def _file_start(config: ConfigFile) -> Start:
    """A start from a file that describes the whole model, such as the output of --dry-run."""
    recipe = apply_config(None, config)
    stem = re.sub(
        r"[^A-Za-z0-9_-]+", "-", config.path.absolute().parent.name if config.path.name == RECIPE else config.path.stem
    )
    return Start(stem.strip("-") or "run", f"Train the recipe in {config.path}.", recipe, whole_file=True)


def _with_data(start: Start, found: TextOrCorpus | None) -> Start:
    """The same start, on another text."""
    if found is None:
        return start
    data = replace(start.recipe.data, corpus=found.corpus, task=None)
    return start._replace(name=found.name, recipe=replace(start.recipe, data=data), text=found.text)


def _text_or_corpus(word: str, given: Given, stack: ExitStack) -> TextOrCorpus:
    from mnemo.data import corpus as corpora
    from mnemo.data.known_corpora import CORPORA, command_for

    path = Path(word).expanduser()
    if word == STDIN or (path.exists() and not (path / corpora.HEADER).is_file()):
        return _own_text(word, given, stack)
    if corpora.find(word) is not None:
        sizes = {name: split.count for name, split in corpora.Corpus.open(word).splits.items()}
        name, about = Path(word).name, _about(f"the corpus {word}")
        return TextOrCorpus(name, about, word, sizes["train"], sizes.get("valid", 0), None)
    if given.name != word or "/" in word or path.suffix in (".txt", ".md", ".gz", ".xz", ".bz2", ".zip", ".tar"):
        hint = _similar_file(path)
        raise MnemoError(f"there is no file or folder '{word}', and no prepared corpus of that name{hint}")
    if (given.runs / word / RECIPE).is_file():
        raise MnemoError(f"'{word}' is a run: mnemo train --resume {word} continues it; --from {word} starts a new one")
    if word in CORPORA:
        raise MnemoError(
            f"'{word}' is a corpus that is not prepared; run: {command_for(word)}; "
            f"mnemo train --list {word} shows the presets for it"
        )
    raise unknown("preset", word.partition("@")[0], PRESETS, LISTING)


def _similar_file(path: Path) -> str:
    """A question with the name of the file that is meant, if one in the same folder has a similar name."""
    if path.is_symlink():
        return f": the link leads to '{path.readlink()}'"
    names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=SIMILAR)
    return f"; did you mean '{path.parent / near[0]}'?" if near else ""


def _own_text(word: str, given: Given, stack: ExitStack) -> TextOrCorpus:
    from mnemo.data.own_text import opened_text
    from mnemo.data.text_files import Accepted

    path, accepted = Path(word).expanduser(), Accepted(encoding=given.encoding, binary=given.binary)
    if (path / RECIPE).is_file():
        raise MnemoError(f"{word} is a run: mnemo train --resume {word} continues it; --from {word} starts a new one")
    if word == STDIN and not is_alone():
        raise MnemoError("several processes cannot share a pipe: write the text to a file")
    text = stack.enter_context(opened_text(piped_text() if word == STDIN else path, accepted))
    if is_main():
        print_files(text.files)
    about = _about(f"{text.files.source}, {text.files.size:,} bytes")
    sizes = text.num_tokens
    return TextOrCorpus(text.base, about, text.corpus_name, sizes["train"], sizes.get("valid", 0), text)


def _about(what: str) -> str:
    return f"Train on {what}. The recipe is chosen by the length of the text and by this machine."


def _recipe_for(found: TextOrCorpus, device: str) -> Recipe:
    import torch

    from mnemo.storage.weights import pick_device

    gpu = pick_device(device).type == "cuda"
    precision = "bf16" if gpu and torch.cuda.is_bf16_supported() else "fp32"
    return own_text_recipe(found.corpus, found.num_train, found.num_valid, gpu=gpu, precision=precision)
