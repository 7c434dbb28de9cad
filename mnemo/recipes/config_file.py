"""Recipes in TOML, YAML or JSON files: load one, and write one.

    [train]
    steps = 500
    optimizer.lr = 1e-3

    [model]
    memory = "rmt"          # the memory of a paper
    positions = "rotary"    # one of several kinds of configuration, by its name

A file names the fields of a `Recipe` that differ from the recipe that it is applied to. `preset = "tiny-bytes"` names
that recipe in the file. "none" stands for no value, which TOML cannot write. A run's recipe.json is accepted as well.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mnemo.config import field_types, from_value, kind_name, kinds_of, to_json
from mnemo.errors import MnemoError, one_line, shorten, unknown
from mnemo.recipes.memories import memory_recipe
from mnemo.recipes.recipe import Recipe

T = TypeVar("T")
SUFFIXES = (".toml", ".yaml", ".yml", ".json")
NONE = "none"
LARGEST = 10**6
"""Bytes of a file."""
SECTIONS = tuple(field.name for field in dataclasses.fields(Recipe))


class ConfigFile(NamedTuple):
    path: Path
    preset: str | None
    """The preset that the file starts from."""
    memory: str | None
    """The memory of a paper in place of that of the recipe."""
    fields: dict[str, Any]
    """Nested names of fields and their new values."""

    @property
    def has_model(self) -> bool:
        return "model" in self.fields


def load_config(path: Path) -> ConfigFile:
    """Load a file; nothing in it is executed, and field names are checked by `apply_config`."""
    data = _load(path)
    data.pop("type", None)
    preset, memory = data.pop("preset", None), data.pop("memory", None)
    for name in data:
        if name not in SECTIONS:
            raise unknown(f"name in {path}", name, [*SECTIONS, "preset", "memory"])
    for name, value in (("preset", preset), ("memory", memory)):
        if value is not None and not isinstance(value, str):
            raise MnemoError(f"{path}: {name} must be a name, not {shorten(repr(value))}")
    return ConfigFile(path, preset, memory or _paper(data), data)


def _paper(data: dict[str, Any]) -> str | None:
    """Take `model.memory` out of the data if it is the name of a paper's memory."""
    model = data.get("model")
    named = isinstance(model, dict) and isinstance(model.get("memory"), str)
    return model.pop("memory") if named and isinstance(model, dict) else None


def _load(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise MnemoError(f"{path} is a folder: name a file; the recipe of a run is RUN/recipe.json")
    if path.suffix.lower() not in SUFFIXES:
        raise MnemoError(f"{path}: a configuration is a file with the suffix {', '.join(SUFFIXES[:-1])} or .json")
    if not path.is_file():
        raise MnemoError(f"{path}: there is no such configuration file")
    if path.stat().st_size > LARGEST:
        raise MnemoError(f"{path} is too large for a configuration: {path.stat().st_size:,} bytes")
    try:
        data = _parse_text(path.read_text(encoding="utf-8"), path.suffix.lower())
        if isinstance(data, dict) and isinstance(data.get("recipe"), dict):  # the recipe.json of a run
            data = data["recipe"]
        return _nested(data, str(path))
    except UnicodeDecodeError:
        raise MnemoError(f"{path} is not a text file in UTF-8") from None
    except RecursionError:
        raise MnemoError(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise MnemoError(f"{path}: {one_line(error)}") from None


def _parse_text(text: str, suffix: str) -> Any:
    if suffix == ".toml":
        return tomllib.loads(text)
    if suffix == ".json":
        return json.loads(text)
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise ValueError("aliases (*name) are not supported")  # a few nested ones make a file of any size
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _nested(data: Any, where: str) -> dict[str, Any]:
    """`{"train.steps": 5, "num-layers": 2}` -> `{"train": {"steps": 5}, "num_layers": 2}`."""
    if not isinstance(data, Mapping):
        raise MnemoError(f"{where}: expected names and values, found {type(data).__name__}")
    result: dict[str, Any] = {}
    for key, value in data.items():
        if not isinstance(key, str):
            raise MnemoError(f"{where}: {shorten(repr(key))} is not a name")
        *outer, last = key.replace("-", "_").split(".")
        place = result
        for name in outer:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise MnemoError(f"{where}: '{name}' is given twice")
        value = _nested(value, where) if isinstance(value, Mapping) else value
        both = isinstance(place.get(last), dict) and isinstance(value, dict)
        place[last] = {**place[last], **value} if both else value
    return result


def apply_config(recipe: Recipe | None, config: ConfigFile) -> Recipe:
    """The recipe with the values of the file; None: the file describes the whole recipe."""
    file = str(config.path)
    if recipe is None:
        whole = _new(Recipe, None, config.fields, file, "")
        return whole if config.memory is None else memory_recipe(whole, config.memory)
    with_memory = recipe if config.memory is None else memory_recipe(recipe, config.memory)
    return _new(Recipe, with_memory, config.fields, file, "")


def _new(cls: type[T], before: Any, data: Mapping[str, Any], file: str, where: str) -> T:
    """A configuration of this class: the file's values, then those of `before`, then the defaults."""
    hints = field_types(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = {name: getattr(before, name) for name in fields if name in _names(before)}
    for name, item in data.items():
        if name == "type":
            continue
        here = f"{where}.{name}" if where else name
        if name not in fields:
            raise _unknown_field(name, where, fields, file)
        values[name] = _value(hints[name], values.get(name, _default(fields[name])), item, file, here)
    try:
        return cls(**values)
    except (ArithmeticError, TypeError, ValueError) as error:
        needs = re.search(r"missing .*?: (.*)", str(error))
        reason = f"{where or 'the recipe'} needs {needs[1]}" if needs else str(error)
        raise MnemoError(f"{file}: {reason}") from None


def _names(value: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()


def _default(field: Any) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _unknown_field(name: str, where: str, fields: Mapping[str, Any], file: str) -> MnemoError:
    """The nearest name in this section, or the same name in another one."""
    elsewhere = [path for path in every_field(Recipe) if path.rpartition(".")[2] == name]
    if elsewhere:
        return MnemoError(f"{file}: unknown name '{where}.{name}'; did you mean '{elsewhere[0]}'?")
    return MnemoError(f"{file}: {unknown(f'name in {where}', name, fields)}")


def every_field(cls: type, path: str = "") -> Iterator[str]:
    """Dotted names of all fields of a configuration, of every kind that it may hold."""
    hints = field_types(cls)
    for field in dataclasses.fields(cls):
        here = f"{path}.{field.name}" if path else field.name
        yield here
        for kind in kinds_of(hints[field.name]):
            if kind is not None:
                yield from every_field(kind, here)


def _value(hint: Any, before: Any, data: Any, file: str, where: str) -> Any:
    kinds = {kind_name(kind): kind for kind in kinds_of(hint)}
    if not any(kinds.values()):
        return _plain(hint, data, f"{file}: {where}")
    if data is None or data == NONE:
        if None not in kinds.values():
            raise MnemoError(f"{file}: {where} cannot be none")
        return None
    chosen = data if isinstance(data, str) else data.get("type") if isinstance(data, dict) else None
    if not isinstance(data, (str, dict)):
        raise MnemoError(f"{file}: {where} must be a section or the name of a kind, not {shorten(repr(data))}")
    kind = _chosen(kinds, before, chosen, f"{file}: {where}")
    return _new(kind, before, {} if isinstance(data, str) else data, file, where)


def _chosen(kinds: Mapping[str, type | None], before: Any, chosen: Any, where: str) -> type:
    if chosen is None:
        named = type(before) if before is not None else next(kind for kind in kinds.values() if kind is not None)
        return named
    for name, kind in kinds.items():
        if kind is not None and chosen in (name, kind.__name__):
            return kind
    raise MnemoError(f"{where}: {unknown('kind', str(chosen), kinds)}")


def _plain(hint: Any, data: Any, where: str) -> Any:
    """A value without fields. YAML takes 1e-3 as a text, and TOML has no null."""
    try:
        return from_value(hint, data, where)
    except MnemoError:
        if data == NONE and type(None) in typing.get_args(hint):
            return None
        number = _number(data)
        if number is None:
            raise
        return from_value(hint, number, where)


def _number(data: Any) -> float | None:
    try:
        return float(data) if isinstance(data, str) else None
    except ValueError:
        return None


def to_toml(recipe: Recipe) -> str:
    """The whole recipe as TOML that `load_config` accepts."""
    return "\n\n".join(_tables(Recipe, recipe, ())).strip() + "\n"


def _tables(hint: Any, value: Any, path: tuple[str, ...]) -> Iterator[str]:
    hints = field_types(type(value))
    items = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    several = sum(kind is not None for kind in kinds_of(hint)) > 1
    lines = [f"type = {_toml(kind_name(type(value)))}"] if several else []
    lines += [f"{name} = {_toml(to_json(item))}" for name, item in items if not dataclasses.is_dataclass(item)]
    if lines:
        yield "\n".join([f"[{'.'.join(path)}]", *lines])
    for name, item in items:
        if dataclasses.is_dataclass(item):
            yield from _tables(hints[name], item, (*path, name))


def _toml(value: Any) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
