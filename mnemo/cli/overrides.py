"""Any field of a configuration as a flag: `--train.steps 100 --model.positions rotary --model.positions.base 5000`.

A field that holds one of several kinds of configuration takes the name of a kind, whose fields then become flags. An
optional field takes `none`; giving one of its fields switches it on.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import tyro

from mnemo.cli.arguments import IMPORT_HELP, flag, one_line_errors, refuse_unknown
from mnemo.config import field_types, kind_name, kinds_of
from mnemo.errors import MnemoError, unknown
from mnemo.recipes.memories import mechanism_of, memory_kind

T = TypeVar("T")
NEEDED = {
    "--resume": "the name or folder of a run",
    "--from": "the name or folder of a run",
    "--config": "a TOML, YAML or JSON file",
    "--data": "a text",
    "--memory": "the name of a memory",
    "--model.memory": "the name of a memory",
}
"""Values of options that are taken before the others, for messages."""


class Choice(NamedTuple):
    """A field that holds one of several dataclasses, or None."""

    path: tuple[str, ...]
    value: Any
    kinds: dict[str, type | None]

    @property
    def flag(self) -> str:
        return flag(self.path)


def parse(kind: type[T], default: T, argv: Sequence[str], *, prog: str, description: str) -> T:
    """`default` with the changes in `argv`; a mistake is an error of one line."""
    default, rest = _choose(default, list(argv))
    rows = [f"{choice.flag} {{{','.join(choice.kinds)}}} (now: {_kind_of(choice)})" for choice in choices(default)]
    text = "\n\n".join(
        [description, IMPORT_HELP, "Kinds of configuration, whose fields are listed below:", "\n".join(rows)]
    )
    try:
        with one_line_errors(rest):
            value, left = tyro.cli(
                kind,
                prog=prog,
                description=text,
                args=rest,
                default=default,
                config=(tyro.conf.AvoidSubcommands,),
                return_unknown_args=True,
            )
    except (MnemoError, ValueError) as error:  # tyro does not catch errors of the outermost configuration
        raise MnemoError(_with_flags(str(error), rest, default)) from None
    refuse_unknown(left, known_flags(default), rest)
    return value


def _with_flags(message: str, argv: Sequence[str], default: Any) -> str:
    """The message with flags in place of field names; of several flags with that name, the one in `argv`."""
    flags: dict[str, set[str]] = {}
    for name in known_flags(default):
        flags.setdefault(name.lstrip("-").rpartition(".")[2].replace("-", "_"), set()).add(name)
    given = {word.partition("=")[0].replace("_", "-") for word in argv}

    def named(match: re.Match[str]) -> str:
        found = flags.get(match[0], set())
        found = found & given or found
        return next(iter(found)) if len(found) == 1 else match[0]

    return re.sub(r"(?<![\w.-])[a-z]+(_[a-z]+)+\b|^[a-z]+(?= = )", named, message)


def choices(value: Any, path: tuple[str, ...] = ()) -> Iterator[Choice]:
    """The fields of a configuration, at any depth, that hold one of several kinds."""
    for name, hint, item in _fields(value):
        here = path if name == "recipe" else (*path, name)
        kinds = kinds_of(hint)
        if len(kinds) > 1:
            yield Choice(here, item, {kind_name(kind): kind for kind in kinds})
        if dataclasses.is_dataclass(item):
            yield from choices(item, here)


def known_flags(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, _, item in _fields(value):
        here = path if name == "recipe" else (*path, name)
        if dataclasses.is_dataclass(item):
            yield from known_flags(item, here)
        else:
            yield flag(here)
    if not path:
        yield from (choice.flag for choice in choices(value))


def _fields(value: Any) -> Iterator[tuple[str, Any, Any]]:
    hints = field_types(type(value))
    for field in dataclasses.fields(value):
        yield field.name, hints[field.name], getattr(value, field.name)


def _kind_of(choice: Choice) -> str:
    return kind_name(None if choice.value is None else type(choice.value))


def _choose(default: T, argv: list[str]) -> tuple[T, list[str]]:
    """Apply the flags that choose a kind, outermost first; return the new default and the other arguments."""
    done: set[str] = set()
    while waiting := [choice for choice in choices(default) if choice.flag not in done]:
        choice = waiting[0]
        done.add(choice.flag)
        wanted, argv = take(choice.flag, argv)
        if wanted is None and choice.value is None and any(_is_below(choice.flag, word) for word in argv):
            wanted = next(name for name, kind in choice.kinds.items() if kind is not None)
        if wanted is not None and wanted not in choice.kinds:
            wanted = _mechanism(choice, wanted)
        if wanted is not None and wanted != _kind_of(choice):
            default = _with(default, choice.path, _new(choice.kinds[wanted], choice.value))
    return default, argv


def _mechanism(choice: Choice, wanted: str) -> str:
    """The kind that the name of a paper stands for."""
    found = mechanism_of(wanted)
    if found in choice.kinds:
        return found
    if memory_kind(wanted) is not None and choice.path[:2] in (("model", "memory"), ("model", "tokens")):
        raise MnemoError(f"{choice.flag} cannot be '{wanted}': use --model.memory {wanted}, the memory of that paper")
    raise unknown(f"value for {choice.flag}", wanted, choice.kinds)


def take(name: str, argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The last value of a flag, and the arguments without it."""
    found, rest, words = None, [], iter(argv)
    for word in words:
        given, equals, value = word.partition("=")
        if given.replace("_", "-") != name:
            rest.append(word)
        elif equals:
            found = value
        else:
            found = next(words, None)
            if found is None or (found.startswith("--") and found != "--"):
                raise MnemoError(f"{name} needs {NEEDED.get(name, 'a value')} after it")
    return found, rest


def _is_below(name: str, word: str) -> bool:
    return word.replace("_", "-").startswith(f"{name}.")


def _new(kind: type | None, before: Any) -> Any:
    """A value of this kind; fields that the earlier kind has as well, such as a length, keep their values."""
    if kind is None:
        return None
    values = {}
    for field in dataclasses.fields(kind):
        if hasattr(before, field.name):
            values[field.name] = getattr(before, field.name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            values[field.name] = tyro.MISSING
    return kind(**values)


def _with(value: T, path: Sequence[str], new: Any) -> T:
    """A copy with another value at `path`, not validated: further arguments may complete it."""
    name, *rest = ("recipe", *path) if hasattr(value, "recipe") else path
    changed = copy.copy(value)
    object.__setattr__(changed, name, _with(getattr(value, name), rest, new) if rest else new)
    return changed
