"""Parse a verb's arguments; every mistake is reported in one line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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


def parse(verb: str, module: Any, argv: Sequence[str]) -> Any:
    """The `Args` of a verb's module."""
    with one_line_errors():
        args, left = tyro.cli(
            module.Args,
            prog=f"mnemo {verb}",
            description=module.__doc__,
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
            raise unknown("option", word.partition("=")[0], known)
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
