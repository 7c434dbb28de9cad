"""The table of options misses none: what option tests cover by themselves, and what they refuse to leave out."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Literal

import pytest
from helpers.model_options import BASES, EXAMPLES, SMALL, VALUES, changed, options
from helpers.option_places import SLOW

from mnemo.model import ModelConfig


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_every_field_is_changed(base: ModelConfig) -> None:
    configs = options(base).values()
    for known in fields(base):
        values = {getattr(config, known.name) for config in configs}
        assert len(values) > 1, known.name


@dataclass(frozen=True, kw_only=True)
class Inner:
    on: bool = False


@dataclass(frozen=True, kw_only=True)
class Outer:
    kind: Literal["a", "b", "c"] = "b"
    inner: Inner = field(default_factory=Inner)


def test_switches_names_and_nested_fields_need_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXAMPLES, Inner, Inner())
    assert dict(changed(Outer())) == {
        "kind=a": Outer(kind="a"),
        "kind=c": Outer(kind="c"),
        "inner=Inner": Outer(),
        "inner=Inner.on=True": Outer(inner=Inner(on=True)),
    }


def test_a_field_without_values_is_an_error() -> None:
    new = make_dataclass("New", [("size", int, field(default=3))], frozen=True)
    with pytest.raises(LookupError, match="no value of New.size is tested"):
        list(changed(new()))


def test_values_belong_to_fields() -> None:
    for owner, table in VALUES.items():
        assert table.keys() <= {known.name for known in fields(owner)}, owner.__name__


def test_options_of_slow_paths_exist() -> None:
    """A name that is misspelt, or that a changed field has made old, would leave its option to thorough tests."""
    assert set(SLOW) <= options(SMALL).keys()
