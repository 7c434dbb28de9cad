"""Verdict on the differences of all cases: which are declared, which are not, which declarations are out of date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from tools.same.compare import Difference
from tools.same.declared import Declared

SHOWN = 6
"""Files of a case whose first difference is printed."""


class Verdict(NamedTuple):
    undeclared: list[Difference]
    declared: list[tuple[Declared, list[Difference]]]
    out_of_date: list[Declared]

    @property
    def passed(self) -> bool:
        return not self.undeclared and not self.out_of_date


def judge(differences: Sequence[Difference], applying: Sequence[Declared]) -> Verdict:
    """`applying`: the declarations that concern this BASE and these cases."""
    matched = [(each, [found for found in differences if matches(each, found)]) for each in applying]
    undeclared = [found for found in differences if not any(matches(each, found) for each in applying)]
    return Verdict(undeclared, matched, [each for each, found in matched if not found])


def matches(declared: Declared, found: Difference) -> bool:
    pairs = zip(declared[:3], found[:3], strict=True)
    return all(pattern == value or fnmatchcase(value, pattern) for pattern, value in pairs)


def applying(
    declarations: Iterable[Declared], cases: set[str], all_cases: set[str], has_old_numbers: Callable[[Declared], bool]
) -> list[Declared]:
    """Declarations of numbers that BASE has in their old form, whose cases have all been run."""

    def concerned(each: Declared) -> set[str]:
        return {case for case in all_cases if fnmatchcase(case, each.case)}

    return [each for each in declarations if concerned(each) <= cases and has_old_numbers(each)]


def report(verdict: Verdict, cases: Sequence[str]) -> Iterable[str]:
    for declared, found in verdict.declared:
        if found:
            yield f"declared: {len(found):,} difference(s) of {_place(declared)}: {declared.why}"
    for case in cases:
        yield from _of_case(case, [found for found in verdict.undeclared if found.case == case])
    for declared in verdict.out_of_date:
        yield f"declared but not found: {_place(declared)} ({declared.why}): remove it from tools/same/declared.py"


def _place(declared: Declared) -> str:
    return f"{declared.case}, {declared.file}, {declared.field}"


def _of_case(case: str, found: Sequence[Difference]) -> Iterable[str]:
    if not found:
        return
    first = {each.file: each for each in reversed(found)}
    yield f"{case}: {len(found):,} difference(s), {len(first):,} file(s); the first of each file:"
    yield from (f"  {each}" for each in sorted(first.values(), key=_interest)[:SHOWN])


def _interest(found: Difference) -> tuple[bool, bool, str]:
    """Failed commands come first, then training, where most differences begin."""
    return found.file != "exits.json", not found.file.endswith("metrics.jsonl"), found.file
