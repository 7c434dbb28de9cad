"""Transcripts: growth, pieces for the losses without memory, gaps, overview and storage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mnemo.serving.studio.transcript as transcript_module
import mnemo.serving.studio.transcripts as transcripts_module
from mnemo.errors import MnemoError
from mnemo.serving.studio.transcript import Tokens, Transcript

SEGMENT = 4


def tokens(count: int, position: int, open: int | None = None, written: bool = False, first: int = 0) -> Tokens:
    nats = np.linspace(0.5, 1.5, count)
    opened = position % SEGMENT if open is None else open
    return Tokens(np.arange(first, first + count), position, opened, written, nats)


def transcript(*parts: Tokens) -> Transcript:
    made = Transcript(SEGMENT, "byte")
    for part in parts:
        made.append(part)
    return made


def test_it_grows_token_by_token() -> None:
    grown = Transcript(SEGMENT, "byte")
    for position in range(1000):
        grown.append(tokens(1, position, written=True, first=position))
    assert grown.rows["id"].tolist() == list(range(1000))
    assert grown.rows["in_segment"].tolist() == [position % SEGMENT for position in range(1000)]
    assert grown.rows["written"].all() and grown.end == 1000


def test_each_token_but_the_first_is_in_one_piece() -> None:
    pieces = transcript(tokens(10, 0)).baseline_pieces(0)
    assert pieces == [range(0, 5), range(4, 9), range(8, 10)]
    predicted = [place for piece in pieces for place in piece[1:]]
    assert predicted == list(range(1, 10))


@pytest.mark.parametrize("begin", range(1, 14))
def test_pieces_for_new_tokens_cover_them(begin: int) -> None:
    made = transcript(tokens(begin, 0), tokens(14 - begin, begin))
    pieces = made.baseline_pieces(begin)
    predicted = {place for piece in pieces for place in piece[1:]}
    assert set(range(begin, 14)) <= predicted
    assert all(int(made.rows["in_segment"][piece.start]) == 0 for piece in pieces)
    assert sum(len(piece) for piece in pieces) <= 14 - begin + 2 * SEGMENT + 3


def test_segments_with_unknown_tokens_are_left_out() -> None:
    """The session continues a memory file that ends inside a segment, and later reads elsewhere."""
    made = transcript(tokens(5, 102, open=2), tokens(6, 111, open=3))
    assert made.baseline_pieces(0) == [range(2, 5), range(6, 11)]


def test_losses_without_memory_are_stored_with_their_tokens() -> None:
    made = transcript(tokens(6, 0))
    made.set_baseline(range(0, 5), np.array([1.0, 2.0, 3.0, 4.0]))
    assert np.isnan(made.rows["without"][[0, 5]]).all()
    assert made.rows["without"][1:5].tolist() == [1, 2, 3, 4]


def test_a_copy_is_independent() -> None:
    made = transcript(tokens(6, 0))
    other = made.copy()
    other.append(tokens(1, 6))
    other.set_baseline(range(0, 2), np.array([9.0]))
    assert len(made) == 6 and np.isnan(made.rows["without"]).all()


def test_the_overview_averages_known_values() -> None:
    made = Transcript(SEGMENT, "byte")
    made.append(Tokens(np.zeros(4), 0, 0, False, np.array([np.nan, 1.0, 2.0, 4.0])))
    made.set_baseline(range(2, 4), np.array([5.0]))
    surprise, saved = made.overview(2)
    assert surprise.tolist() == [1.0, 3.0]
    assert np.isnan(saved[0]) and saved[1] == 1.0
    assert Transcript(SEGMENT, "byte").overview(5).shape == (2, 0)


def test_repetitions_are_searched_again_after_new_tokens() -> None:
    made = Transcript(SEGMENT, "word")
    made.append(Tokens(np.array([1, 2, 3, 1, 2]), 0, 0, False, np.zeros(5)))
    assert made.earlier().distance.tolist() == [0, 0, 0, 0, 3]
    made.append(Tokens(np.array([3]), 5, 1, False, np.zeros(1)))
    assert made.earlier().distance.tolist() == [0, 0, 0, 0, 3, 3]


def test_a_full_transcript_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript_module, "MOST_SHOWN", 5)
    made = transcript(tokens(3, 0), tokens(3, 3), tokens(3, 6))
    assert len(made) == 6 and made.is_full


def test_transcripts_that_are_dropped_from_memory_come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(transcripts_module, "MOST_TOKENS", 4)
    kept = transcripts_module.Transcripts(tmp_path)
    kept.get("one", SEGMENT, "byte").append(tokens(6, 0))
    kept.get("two", SEGMENT, "byte").append(tokens(2, 0))
    kept.get("three", SEGMENT, "byte")
    assert len(kept.get("one", SEGMENT, "byte")) == 6
    kept.keep_only(["two"])
    assert len(kept.get("one", SEGMENT, "byte")) == 0 and not list(tmp_path.glob("one*"))
    kept.save("../two")
    assert sorted(path.name for path in tmp_path.parent.glob("*.npz")) == []


def test_bytes_restore_it() -> None:
    made = transcript(tokens(6, 0), tokens(2, 9, written=True))
    again = Transcript.from_bytes(made.to_bytes())
    assert (again.segment, again.unit) == (SEGMENT, "byte")
    assert again.rows.tobytes() == made.rows.tobytes()


@pytest.mark.parametrize("damage", ["emptied", "replaced", "cut", "renamed"])
def test_damaged_bytes_are_a_clear_error(damage: str) -> None:
    data = transcript(tokens(6, 0)).to_bytes()
    damaged = {
        "emptied": b"",
        "replaced": b"no archive",
        "cut": data[: len(data) // 2],
        "renamed": data.replace(b"rows.npy", b"rowz.npy"),
    }
    with pytest.raises(MnemoError, match="transcript is damaged"):
        Transcript.from_bytes(damaged[damage])
