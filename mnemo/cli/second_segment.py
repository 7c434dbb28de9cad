"""Memory has no effect before the second segment of a text: tell where a text, or each of its rows, has only one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.errors import MnemoError

if TYPE_CHECKING:
    from mnemo.data.corpus import Split
    from mnemo.evaluation.settings import EvaluationSettings


def has_second_segment(num_tokens: int, segment: int) -> bool:
    """Whether anything is predicted after the first segment; the last token of a text is only a target."""
    return num_tokens - 1 > segment


def require_two_segments(size: int, segment: int, unit: str = "tokens", *, is_limit: bool = False) -> None:
    """Raise an error for a text of one segment; `size` may be in another unit, of which a token has at least one.

    `is_limit`: the text may be longer, but no more of it is read.
    """
    if has_second_segment(size, segment):
        return
    of = f"a segment {segment:,}" if unit == "tokens" else f"a segment {segment:,} tokens"
    has, longer = ("--limit takes", "a larger --limit") if is_limit else ("the text has", "a longer text")
    raise MnemoError(
        f"{has} {size:,} {unit} and {of}, but memory has no effect before the second segment: "
        f"use {longer}, or a shorter --segment"
    )


def why_one_segment(split: Split, settings: EvaluationSettings) -> str | None:
    """Why memory has no effect on the score of a split, and what helps; None if a row has a second segment."""
    count = len(split.ids) if settings.limit is None else min(settings.limit, len(split.ids))
    longest = count // settings.batch
    is_cut = settings.documents == "reset" and settings.order == "contiguous" and split.documents is not None
    if is_cut:
        longest = _longest_document(split, count, longest)
    # A first memory of zeros is attended to in the first segment, too. Rows without a target are another mistake.
    if has_second_segment(longest, settings.segment) or settings.start == "zeros" or longest < 2:
        return None
    rows = f"documents of at most {longest - 1:,} tokens" if is_cut else f"rows of {longest - 1:,} tokens"
    return (
        f"{rows} end in their first segment of {settings.segment:,}, so memory has no effect: "
        f"{_remedies(count, settings, is_cut)}"
    )


def _longest_document(split: Split, count: int, row: int) -> int:
    """Tokens of the longest document of the first `count` tokens, which ends where a row of `row` tokens ends."""
    import numpy as np

    assert split.documents is not None
    edges = np.union1d(split.documents, np.arange(0, count + 1, max(1, row)))
    return int(np.diff(edges[edges <= count]).max(initial=0))


def _remedies(count: int, settings: EvaluationSettings, is_cut: bool) -> str:
    helpful = {
        "--documents ignore": is_cut,
        "--batch 1": settings.batch > 1 and not is_cut and has_second_segment(count, settings.segment),
        "a larger --limit": settings.limit is not None,
    }
    first = [words for words, helps in helpful.items() if helps]
    return " or ".join(filter(None, (", ".join(first), "a smaller --segment")))
