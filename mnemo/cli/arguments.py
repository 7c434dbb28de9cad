"""Parse a verb's arguments; every mistake is reported in one line."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import tyro

from mnemo.cli.meanings import unknown_option
from mnemo.errors import MnemoError, shorten

try:
    # tyro's only access to structured errors is private; a release without it prints its own text and exits with 2.
    from tyro import _errors as tyro_errors
except ImportError:
    tyro_errors = None

KINDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "STR": "a text"}
"""Words for tyro's names of types."""
SEVERAL = {"INT": "whole numbers", "FLOAT": "numbers", "PATH": "paths", "STR": "texts", "{False,True}": "True or False"}


CONFIG = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone)


IMPORT = "--import"
IMPORT_HELP = "--import FILE, with every verb: a Python file that defines a memory of your own (docs/adding-memory.md)."


def import_options() -> list[str]:
    """The options that import again what this command has imported."""
    from mnemo.memory.own import imported_files

    return [word for file in imported_files() for word in (IMPORT, file)]


def import_files(argv: Sequence[str]) -> list[str]:
    """Execute the files of --import, which define memories, and return the other arguments."""
    rest, words = [], iter(argv)
    for word in words:
        name, equals, file = word.partition("=")
        if name != IMPORT:
            rest.append(word)
            continue
        file = file if equals else next(words, "")
        if not file:
            raise MnemoError("--import needs a Python file")
        from mnemo.memory.own import import_file

        import_file(Path(file).expanduser())
    return rest


def parse(verb: str, module: Any, argv: Sequence[str]) -> Any:
    """The `Args` of a verb's module."""
    with one_line_errors(argv):
        args, left = tyro.cli(
            module.Args,
            prog=f"mnemo {verb}",
            description=f"{module.__doc__}\n{IMPORT_HELP}",
            args=argv,
            config=CONFIG,
            return_unknown_args=True,
        )
    refuse_unknown(left, options_of(module.Args), argv)
    return args


def options_of(cls: Any) -> list[str]:
    """Names of the options of a verb, without its positional arguments."""
    hints = typing.get_type_hints(cls, include_extras=True)
    positional = {name for name, hint in hints.items() if tyro.conf.Positional in typing.get_args(hint)}
    return [flag([field.name]) for field in dataclasses.fields(cls) if field.name not in positional]


def flag(path: Sequence[str]) -> str:
    return "--" + ".".join(name.rstrip("_") for name in path).replace("_", "-")


def refuse_unknown(left: Sequence[str], known: Iterable[str], argv: Sequence[str] = ()) -> None:
    """Raise an error if the parser has left arguments of `argv` over."""
    for word in left:
        if word.startswith("-"):
            raise unknown_option(word.partition("=")[0], [*known, IMPORT])
    if left:
        raise MnemoError(f"unexpected argument '{left[0]}'{_after_switch(left[0], argv)}")


def _after_switch(word: str, argv: Sequence[str]) -> str:
    """A hint if the word follows an option that takes no value."""
    place = list(argv).index(word) if word in argv else 0
    before = argv[place - 1] if place else ""
    if not before.startswith("--") or "=" in before:
        return ""
    head, dot, last = before.removeprefix("--").rpartition(".")
    off = f"--{head}{dot}{last.removeprefix('no-')}" if last.startswith("no-") else f"--{head}{dot}no-{last}"
    return f": {before} is a switch without a value ({off}: the opposite)" if dot else f": {before} is a switch"


@contextmanager
def one_line_errors(argv: Sequence[str]) -> Iterator[None]:
    """Raise MnemoError in place of tyro's framed messages about `argv`."""
    if tyro_errors is None:
        yield
        return
    with tyro_errors.on_parse_error(functools.partial(_raise, argv)):
        yield


def _raise(argv: Sequence[str], event: Any) -> NoReturn | None:
    assert tyro_errors is not None
    message = None
    if isinstance(event, tyro_errors.MissingArgs):
        names = (_name(found.arg) for found in event.missing_arguments)
        message = f"missing {', '.join(names)}; {event.prog} --help explains the arguments"
    elif isinstance(event, tyro_errors.BadValue):
        message = f"{_name(event.argument)} needs {_accepted(event.argument)} after it"
    elif isinstance(event, tyro_errors.InvalidChoice):
        choices = ", ".join(sorted(choice for choice in event.choices if choice != "None"))
        message = f"{_name(event.argument)}: '{event.value}' is not one of {choices}"
    elif isinstance(event, tyro_errors.InstantiationFailure):
        message = event.message if event.argument is None else _refused(event.argument, argv)
    if message is not None:
        raise MnemoError(message)
    return None


def _name(argument: Any) -> str:
    name = argument.display_name()
    return name if name.startswith("-") else name.upper()


def _refused(argument: Any, argv: Sequence[str]) -> str:
    """`--train.steps needs a whole number, not 'abc'`."""
    given = _given(_name(argument), argv)
    return f"{_name(argument)} needs {_accepted(argument)}" + (f", not '{shorten(given)}'" if given else "")


def _accepted(argument: Any) -> str:
    """The kind of value that an argument takes, in words."""
    metavar = argument.lowered.metavar or ""
    plain = re.sub(r"[\[\]. ]|\{None\}", " ", metavar.replace("|", " "))
    kinds = list(dict.fromkeys(plain.split()))
    several = len(metavar.split()) > 1
    words = [(SEVERAL if several else KINDS).get(kind, kind) for kind in kinds]
    return " or ".join([*words, *(["None"] if "{None}" in metavar else [])]) or "a value"


def _given(name: str, argv: Sequence[str]) -> str:
    """The words after an option, up to the next option."""
    for place, word in enumerate(argv):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") == name:
            following = itertools.takewhile(lambda each: not each.startswith("--"), argv[place + 1 :])
            return value if equals else " ".join(following)
    return ""
