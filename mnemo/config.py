"""Convert configurations, which are frozen dataclasses, to JSON and back.

Every dataclass is stored with its class name under `type`, which selects the class of a union.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from mnemo.errors import MnemoError, shorten, unknown

T = TypeVar("T")
LARGEST_SIZE = 2**24
"""Limit of widths, lengths and counts that have no other limit."""

TYPES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    type(None): "none",
}
"""Types of values in messages."""


def to_json(value: Any) -> Any:
    """Return a configuration, or any value inside one, as plain JSON data."""
    if dataclasses.is_dataclass(value):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)  # a subclass of int becomes a plain number
    return value


_field_types: dict[type, dict[str, Any]] = {}
"""Known types of fields: evaluating annotations takes longer than all the rest of loading a configuration."""


def field_types(cls: type) -> dict[str, Any]:
    """Types of the fields of a dataclass, by name."""
    if cls not in _field_types:
        _field_types[cls] = typing.get_type_hints(cls)
    return _field_types[cls]


def forget_field_types() -> None:
    """Call this when a name that annotations contain has got another value."""
    _field_types.clear()


def from_json(cls: type[T], data: Any, where: str = "configuration") -> T:
    """Return the dataclass `cls` from the output of `to_json`; every name and type is checked."""
    if not isinstance(data, dict):
        raise MnemoError(f"{where}: expected an object, found {type(data).__name__}")
    kind = data.get("type", cls.__name__)
    if kind != cls.__name__:
        raise MnemoError(f"{where}: expected type '{cls.__name__}', found '{shorten(str(kind))}'")
    hints = field_types(cls)
    names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = {}
    for name, item in data.items():
        if name == "type":
            continue
        if name not in names:
            raise unknown(f"field in {where}", name, names)
        values[name] = from_value(hints[name], item, f"{where}.{name}")
    try:
        return cls(**values)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise MnemoError(f"{where}: {error}") from None


def kind_name(kind: type | None) -> str:
    """The name of a kind of configuration in commands and files: `AverageConfig` -> `average`, `XL` -> `xl`."""
    if kind is None:
        return "none"
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__.removesuffix("Config")).lower()


def kinds_of(hint: Any) -> list[type | None]:
    """The kinds of configuration that a field with this type may hold; None is among them if it may be left out."""
    if typing.get_origin(hint) is typing.Annotated:
        return kinds_of(typing.get_args(hint)[0])
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = [None if option is type(None) else option for option in (typing.get_args(hint) if union else (hint,))]
    return [option for option in options if option is None or _is_configuration(option)]


def from_value(hint: Any, data: Any, where: str) -> Any:
    """Return a value of type `hint` from the output of `to_json`; every name and type is checked."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return from_value(arguments[0], data, where)
    if origin in (typing.Union, types.UnionType):
        return _parse_union(arguments, data, where)
    if origin is typing.Literal:
        if data not in arguments:
            raise unknown(f"value for {where}", str(data), map(str, arguments))
        return data
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            raise MnemoError(f"{where}: expected a list")
        return tuple(from_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if _is_configuration(hint):
        return from_json(hint, data, where)
    return _parse_scalar(hint, data, where)


def _is_configuration(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _parse_union(arguments: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in arguments:
        return None
    classes: dict[str, type[Any]] = {a.__name__: a for a in arguments if _is_configuration(a)}
    if classes and isinstance(data, dict):
        kind = data.get("type")
        if not isinstance(kind, str) or kind not in classes:
            raise unknown(f"type in {where}", str(kind), classes)
        return from_json(classes[kind], data, where)
    plain = [a for a in arguments if a is not type(None) and not _is_configuration(a)]
    for hint in plain:
        try:
            return from_value(hint, data, where)
        except MnemoError:
            continue
    raise MnemoError(f"{where}: expected {_in_words(arguments)}, found {shorten(repr(data))}")


def _parse_scalar(hint: Any, data: Any, where: str) -> Any:
    if hint is float and type(data) is int:
        return float(data)
    if type(data) is not hint:
        raise MnemoError(f"{where}: expected {_in_words((hint,))}, found {shorten(repr(data))}")
    if hint is float and not math.isfinite(data):
        raise MnemoError(f"{where}: {data} is not finite")
    return data


def _in_words(hints: tuple[Any, ...]) -> str:
    """`a number or none`."""
    words = []
    for hint in hints:
        literals = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else None
        words += [TYPES.get(hint, getattr(hint, "__name__", str(hint)))] if literals is None else map(repr, literals)
    return " or ".join(words)


def check_sizes(config: Any, limits: Mapping[str, int]) -> None:
    """Refuse absurdly large integers before anything is allocated or counted with them."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(item):
                check_sizes(item, limits)
            elif type(item) is int and abs(item) > limits.get(field.name, LARGEST_SIZE):
                limit = limits.get(field.name, LARGEST_SIZE)
                raise ValueError(f"{field.name} = {item} is out of range: at most {limit:,}")


def canonical(value: Any) -> str:
    """Return JSON text that is equal for equal configurations on all machines."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()
