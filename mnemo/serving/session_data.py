"""The data of a session: everything that its continuation depends on, and the records of what it has read and written.

A session is immutable data. A request computes a new one from it, and the store replaces the old one when the request
is complete. A record holds what one request has done. Carrying out the records of a session again, in the same order
and with the same model, gives the same session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mnemo.serving.text_stream import TAIL


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything about a session except the model's state."""

    model: str
    """Name of the served model"""
    fingerprint: str
    """Of the model's weights: a state is of no use to other weights"""
    name: str = ""
    """Chosen by the client, for display only"""
    created: float
    """Seconds since 1970"""
    changed: float
    seed: int
    draws: int = 0
    """Random numbers of the seed that were used"""
    tokens: int = 0
    """Tokens read and written"""
    tail: tuple[int, ...] = ()
    """The last tokens, for decoding the next ones as text"""
    open: tuple[int, ...] | None = ()
    """Tokens of the open segment; None after loading a memory file, which does not have them"""
    lengths: int | tuple[int, ...] | None = None
    """Memory slots of the long-range layers, or of every layer; None: as in training"""
    memory_on: bool = True
    """Whether anything is kept from one segment to the next"""
    records: int = 0
    """Number of records that led here"""

    def after(self, last: Sequence[int], count: int, num_open: int) -> Facts:
        """The facts after `count` further tokens, of which `last` are the last ones, enough for an open segment."""
        together = (*(self.open or ()), *last)
        known = self.open is not None or len(last) >= num_open
        opened = together[len(together) - num_open :] if known else None
        return replace(self, tokens=self.tokens + count, tail=(*self.tail, *last)[-TAIL:], open=opened)


class Session(NamedTuple):
    facts: Facts
    state: Any
    """State of the model; of its kind, see `SessionModel`"""


@dataclass(frozen=True, kw_only=True)
class Read:
    """Tokens that were read."""

    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Written:
    """Tokens that were written."""

    ids: tuple[int, ...]
    seed: int
    """Of the random numbers that the session goes on with"""
    draws: int
    """Random numbers of the seed that are used up after these tokens"""


@dataclass(frozen=True, kw_only=True)
class MemorySet:
    """Another memory length, or memory turned off or on."""

    length: int | tuple[int, ...] | None
    on: bool


@dataclass(frozen=True, kw_only=True)
class Described:
    """Another name, and for a fork another time of creation and perhaps another seed."""

    name: str
    created: float
    seed: int | None = None
    """None: random numbers go on as they were"""


Operation = Read | Written | MemorySet | Described


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one request has done to a session."""

    number: int
    """From 1, without gaps"""
    time: float
    operations: tuple[Operation, ...]

    @property
    def tokens(self) -> int:
        return sum(len(each.ids) for each in self.operations if isinstance(each, Read | Written))


def outlined(facts: Facts, record: Record) -> Facts:
    """The facts that a record changes and that need no model to know; `tail` and `open` stay as they were."""
    facts = replace(facts, records=record.number, changed=record.time, tokens=facts.tokens + record.tokens)
    for each in record.operations:
        match each:
            case Written():
                facts = replace(facts, seed=each.seed, draws=each.draws)
            case MemorySet():
                facts = replace(facts, lengths=each.length, memory_on=each.on)
            case Described():
                facts = described(facts, each)
            case Read():
                pass
    return facts


def described(facts: Facts, change: Described) -> Facts:
    facts = replace(facts, name=change.name, created=change.created)
    return facts if change.seed is None else replace(facts, seed=change.seed, draws=0)
