"""Parse a verb's arguments; every mistake is reported in one line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import tyro

from mnemo.errors import MnemoError, unknown

try:
    # tyro's only access to structured errors is private; a release without it prints its own text and exits with 2.
    from tyro import _errors as tyro_errors
except ImportError:
    tyro_errors = None

KINDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "STR": "a text"}
"""Words for tyro's names of types."""


CONFIG = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone)


IMPORT = "--import"
IMPORT_HELP = "--import FILE, with every verb: a Python file that defines a memory of your own (docs/adding-memory.md)."


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
    with one_line_errors():
        args, left = tyro.cli(
            module.Args,
            prog=f"mnemo {verb}",
            description=f"{module.__doc__}\n{IMPORT_HELP}",
            args=argv,
            config=CONFIG,
            return_unknown_args=True,
        )
    refuse_unknown(left, [flag([field.name]) for field in dataclasses.fields(module.Args)])
    return args


def flag(path: Sequence[str]) -> str:
    return "--" + ".".join(name.rstrip("_") for name in path).replace("_", "-")


def refuse_unknown(left: Sequence[str], known: Iterable[str]) -> None:
    """Raise an error if the parser has left arguments over."""
    for word in left:
        if word.startswith("-"):
            raise unknown("option", word.partition("=")[0], [*known, IMPORT])
    if left:
        raise MnemoError(f"unexpected argument '{left[0]}'")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Raise MnemoError in place of tyro's framed messages."""
    if tyro_errors is None:
        yield
        return
    with tyro_errors.on_parse_error(_raise):
        yield


def _raise(event: Any) -> NoReturn | None:
    assert tyro_errors is not None
    message = None
    if isinstance(event, tyro_errors.MissingArgs):
        names = (_name(found.arg) for found in event.missing_arguments)
        message = f"missing {', '.join(names)}; {event.prog} --help explains the arguments"
    elif isinstance(event, tyro_errors.BadValue):
        message = f"{_name(event.argument)} needs a value"
    elif isinstance(event, tyro_errors.InvalidChoice):
        choices = ", ".join(sorted(choice for choice in event.choices if choice != "None"))
        message = f"{_name(event.argument)}: '{event.value}' is not one of {choices}"
    elif isinstance(event, tyro_errors.InstantiationFailure):
        message = event.message if event.argument is None else _accepted(event.argument)
    if message is not None:
        raise MnemoError(message)
    return None


def _name(argument: Any) -> str:
    name = argument.display_name()
    return name if name.startswith("-") else name.upper()


def _accepted(argument: Any) -> str:
    kind = "|".join(part for part in (argument.lowered.metavar or "").split("|") if part != "{None}")
    return f"{_name(argument)} takes {KINDS.get(kind, kind)}"
