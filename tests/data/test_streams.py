from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from mnemo.data.streams import Batch, ContiguousStream, Cursor, SentenceStream, Stream, one_epoch, read_on
from mnemo.errors import MnemoError

GOLDEN_FILE = Path(__file__).parents[1] / "golden" / "transformer-xl" / "data_40_iterators.safetensors"


def pairs(batches: list[Batch]) -> list[tuple[int, int]]:
    """Every (input, target) pair that is scored; padding must carry no target."""
    found = []
    for batch in batches:
        length = batch.targets.shape[1]
        inputs = batch.tokens[:, batch.tokens.shape[1] - length :]
        lengths = torch.full((len(inputs),), length) if batch.lengths is None else batch.lengths
        valid = torch.arange(length) < lengths[:, None]
        assert (batch.targets[~valid] == -1).all() and (inputs[~valid] == 0).all()
        assert (batch.targets[valid] >= 0).all()
        found += list(zip(inputs[valid].tolist(), batch.targets[valid].tolist(), strict=True))
    return found


def read_all(stream: Stream, cursor: Cursor, count: int) -> list[Batch | None]:
    found = []
    for _ in range(count):
        batch, cursor = stream.read(json.loads(json.dumps(cursor)))
        found.append(batch)
    return found


def same(a: Batch | None, b: Batch | None) -> bool:
    if a is None or b is None:
        return a is b
    return all(x is y if x is None or y is None else torch.equal(x, y) for x, y in zip(a, b, strict=True))


def cases(kind: str) -> list[dict[str, Any]]:
    with safe_open(GOLDEN_FILE, "pt") as file:
        config = json.loads(file.metadata()["config"])
    return [case for case in config["cases"] if case["kind"] == kind]


@pytest.mark.parametrize("case", [*cases("ordered"), *cases("shuffled")], ids=lambda c: f"{c['kind']}{c['index']}")
def test_batches_equal_the_published_iterators(case: dict[str, Any]) -> None:
    prefix = f"{case['kind']}{case['index']}"
    with safe_open(GOLDEN_FILE, "pt") as file:
        ids = file.get_tensor(f"{prefix}/stream").numpy()
        shape = {"batch": case["bsz"], "segment": case["bptt"], "context": case["ext_len"]}
        if case["kind"] == "ordered":
            stream: Stream = ContiguousStream(ids, **shape)
        else:
            lengths = file.get_tensor(f"{prefix}/sent_len").numpy()
            stream = SentenceStream(ids, np.cumsum(lengths) - lengths, **shape, shuffle=False)
        batches = list(one_epoch(stream))
        assert len(batches) == case["n_batch"]
        for k, batch in enumerate(batches):
            assert torch.equal(batch.tokens.T, file.get_tensor(f"{prefix}/batch{k}/input"))
            assert torch.equal(batch.targets.T, file.get_tensor(f"{prefix}/batch{k}/target"))
            assert batch.lengths is None
            assert (batch.starts is not None and batch.starts.all()) if k == 0 else batch.starts is None


@st.composite
def texts(draw: st.DrawFn) -> dict[str, Any]:
    batch = draw(st.integers(1, 4))
    size = draw(st.integers(2 * batch, 90))
    return {
        "ids": np.arange(size, dtype=np.uint16),
        "batch": batch,
        "segment": draw(st.integers(1, 12)),
        "rotate": draw(st.booleans()),
        "vary": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
    }


def cut(text: dict[str, Any], draw: Callable[..., Any]) -> dict[str, Any]:
    size = len(text["ids"])
    documents = draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=12))
    return text | {"documents": np.array(sorted(documents))}


@st.composite
def cut_texts(draw: st.DrawFn) -> dict[str, Any]:
    return cut(draw(texts()), draw)


def row_pairs(text: dict[str, Any]) -> list[list[tuple[int, int]]]:
    """Neighbours within each row, in order."""
    num = len(text["ids"]) // text["batch"]
    return [[(r * num + i, r * num + i + 1) for i in range(num - 1)] for r in range(text["batch"])]


@given(texts())
def test_every_pair_is_predicted_once_an_epoch(text: dict[str, Any]) -> None:
    found = pairs(list(one_epoch(ContiguousStream(**text))))
    expected = [pair for row in row_pairs(text) for pair in row]
    assert len(found) == len(set(found)) == len(expected)
    if not text["rotate"]:
        assert sorted(found) == expected


@given(texts())
def test_a_rotated_row_is_the_row_from_another_place_on(text: dict[str, Any]) -> None:
    text["rotate"] = True
    stream = ContiguousStream(**text)
    num = len(text["ids"]) // text["batch"]
    rows = torch.cat([batch.tokens for batch in one_epoch(stream)], dim=1)
    targets = torch.cat([batch.targets for batch in one_epoch(stream)], dim=1)
    for r, (row, target) in enumerate(zip(rows.tolist(), targets.tolist(), strict=True)):
        whole = [*row, target[-1]]
        begin = whole[0] - r * num
        assert whole == [r * num + (begin + i) % num for i in range(num)]


def test_rotation_differs_by_row_epoch_and_seed() -> None:
    ids = np.arange(4000)

    def firsts(seed: int, epoch: int) -> list[int]:
        stream = ContiguousStream(ids, 4, 1000, rotate=True, seed=seed)
        cursor = stream.start()
        for _ in range(epoch):
            cursor = stream.read(stream.read(cursor)[1])[1]
        batch, _ = stream.read(cursor)
        assert batch is not None
        return (batch.tokens[:, 0] % 1000).tolist()

    assert len(set(firsts(0, 0))) == 4
    assert len({tuple(firsts(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


@given(cut_texts())
def test_documents_are_kept_apart(text: dict[str, Any]) -> None:
    """Without rotation: each pair inside a document and a row once, none across an edge, starts exactly there."""
    text["rotate"] = False
    begins = set(text["documents"].tolist())
    num = len(text["ids"]) // text["batch"]
    expected = [(a, b) for row in row_pairs(text) for a, b in row if b not in begins]
    if not expected:
        with pytest.raises(MnemoError, match="nothing to predict"):
            ContiguousStream(**text)
        return
    batches = list(one_epoch(ContiguousStream(**text)))
    assert sorted(pairs(batches)) == expected
    for batch in batches:
        assert batch.lengths is None or (0 < batch.lengths.max() == batch.targets.shape[1])
        starts = torch.zeros(len(batch.tokens), dtype=torch.bool) if batch.starts is None else batch.starts
        for row, token in enumerate(batch.tokens[:, 0].tolist()):
            empty = batch.lengths is not None and batch.lengths[row] == 0
            assert starts[row] == (not empty and (token in begins or token == row * num))


@given(cut_texts())
def test_documents_are_kept_apart_in_rotated_rows(text: dict[str, Any]) -> None:
    text["rotate"] = True
    begins = set(text["documents"].tolist())
    allowed = [(a, b) for row in row_pairs(text) for a, b in row if b not in begins]
    try:
        found = pairs(list(one_epoch(ContiguousStream(**text))))
    except MnemoError:
        return
    assert len(found) == len(set(found))
    assert set(found) <= set(allowed)
    assert len(allowed) - len(found) <= text["batch"]  # the place where a row is cut open


@given(texts(), st.booleans(), st.data())
def test_a_saved_cursor_resumes_exactly(text: dict[str, Any], documents: bool, data: st.DataObject) -> None:
    if documents:
        text = cut(text, data.draw)
    try:
        stream = ContiguousStream(**text)
    except MnemoError:
        return
    count = 2 * len(list(one_epoch(stream))) + 4
    straight = read_all(stream, stream.start(), count)
    stop = data.draw(st.integers(0, count - 1))
    cursor = stream.start()
    for _ in range(stop):
        _, cursor = stream.read(cursor)
    resumed = read_all(ContiguousStream(**text), cursor, count - stop)
    assert all(same(a, b) for a, b in zip(straight[stop:], resumed, strict=True))
    assert straight.count(None) >= 1


@given(texts(), st.integers(1, 9))
def test_context_is_what_came_before(text: dict[str, Any], context: int) -> None:
    plain, extended = ContiguousStream(**text), ContiguousStream(**text, context=context)
    seen = torch.empty(text["batch"], 0, dtype=torch.int64)
    for short, long in zip(one_epoch(plain), one_epoch(extended), strict=True):
        assert torch.equal(short.targets, long.targets)
        before = seen[:, max(0, seen.shape[1] - context) :]
        assert torch.equal(long.tokens, torch.cat([before, short.tokens], dim=1))
        seen = torch.cat([seen, short.tokens], dim=1)


def test_varying_lengths_follow_the_published_rule() -> None:
    lengths = [b.targets.shape[1] for b in one_epoch(ContiguousStream(np.zeros(400_000), 2, 70, vary=True))]
    inner = np.array(lengths[:-1])
    assert inner.min() >= 5 and inner.max() <= 85
    near_half = (inner < 50).mean()
    assert 0.03 < near_half < 0.07
    assert abs(inner[inner >= 50].mean() - 69.5) < 0.5  # a normal around 70, rounded down
    assert 4 < inner[inner >= 50].std() < 6


def test_varying_lengths_are_clipped() -> None:
    lengths = [b.targets.shape[1] for b in one_epoch(ContiguousStream(np.zeros(9000), 1, 4, vary=True))]
    assert set(lengths[:-1]) <= set(range(5, 20)) and 5 in lengths and max(lengths) > 12


def test_drop_last_leaves_out_the_short_segment() -> None:
    ids = np.arange(24)
    assert [b.targets.shape[1] for b in one_epoch(ContiguousStream(ids, 2, 4))] == [4, 4, 3]
    assert [b.targets.shape[1] for b in one_epoch(ContiguousStream(ids, 2, 4, drop_last=True))] == [4, 4]
    assert [b.targets.shape[1] for b in one_epoch(ContiguousStream(np.arange(26), 2, 4, drop_last=True))] == [4, 4, 4]


def test_read_on_crosses_epochs_and_begins_again() -> None:
    stream = ContiguousStream(np.arange(10), 1, 5)
    cursor, tokens, starts = stream.start(), [], []
    for _ in range(4):
        batch, cursor = read_on(stream, cursor)
        tokens.append(batch.tokens[0, 0].item())
        starts.append(batch.starts is not None)
    assert tokens == [0, 5, 0, 5] and starts == [True, False, True, False] and cursor["epoch"] == 1


@st.composite
def sentences(draw: st.DrawFn) -> dict[str, Any]:
    lengths = np.array(draw(st.lists(st.integers(1, 9), min_size=1, max_size=30)))
    return {
        "ids": np.arange(lengths.sum()),
        "sentences": np.cumsum(lengths) - lengths,
        "batch": draw(st.integers(1, 3)),
        "segment": draw(st.integers(1, 6)),
        "context": draw(st.integers(0, 8)),
        "seed": draw(st.integers(0, 3)),
    }


def sentence_stream(text: dict[str, Any]) -> SentenceStream | None:
    try:
        return SentenceStream(**text)
    except MnemoError as error:
        assert "do not fill" in str(error)
        return None


@given(sentences())
def test_sentences_are_never_joined_and_pairs_come_once(text: dict[str, Any]) -> None:
    stream = sentence_stream(text)
    if stream is None:
        return
    batches = list(one_epoch(stream))
    found = pairs(batches)
    begins = set(text["sentences"].tolist())
    assert len(found) == len(set(found)) == len(batches) * text["batch"] * text["segment"]
    assert all(b == a + 1 and b not in begins for a, b in found)
    possible = len(text["ids"]) - len(begins)
    assert possible - len(found) < 2 * text["batch"] * text["segment"] + 9 * text["batch"]


@given(sentences(), st.data())
def test_a_sentence_cursor_resumes_exactly(text: dict[str, Any], data: st.DataObject) -> None:
    stream = sentence_stream(text)
    if stream is None:
        return
    count = len(list(one_epoch(stream))) + 3
    stop = data.draw(st.integers(0, count - 1))
    cursor = stream.start()
    for _ in range(stop):
        _, cursor = stream.read(cursor)
    straight = read_all(stream, stream.start(), count)
    resumed = read_all(SentenceStream(**text), cursor, count - stop)
    assert all(same(a, b) for a, b in zip(straight[stop:], resumed, strict=True))


@given(sentences())
def test_sentence_context_is_what_came_before(text: dict[str, Any]) -> None:
    stream = sentence_stream(text)
    if stream is None:
        return
    seen = torch.empty(text["batch"], 0, dtype=torch.int64)
    for batch in one_epoch(stream):
        new = batch.tokens[:, batch.tokens.shape[1] - text["segment"] :]
        before = seen[:, max(0, seen.shape[1] - text["context"]) :]
        assert torch.equal(batch.tokens, torch.cat([before, new], dim=1))
        seen = torch.cat([seen, new], dim=1)


def test_sentences_are_shuffled_anew_every_epoch() -> None:
    stream = SentenceStream(np.arange(300), np.arange(0, 300, 3), 1, 10)
    cursor, epochs = stream.start(), []
    for _ in range(2):
        epochs.append([batch.tokens.tolist() for batch in one_epoch(stream, cursor)])
        while (read := stream.read(cursor))[0] is not None:
            cursor = read[1]
        cursor = read[1]
    assert epochs[0] != epochs[1]
    plain = SentenceStream(np.arange(300), np.arange(0, 300, 3), 1, 10, shuffle=False)
    assert next(one_epoch(plain)).tokens.tolist() == [[0, 1, 3, 4, 6, 7, 9, 10, 12, 13]]


def test_the_first_tokens_of_a_text_keep_its_documents_and_sentences() -> None:
    """Evaluation on the first N symbols cuts the ids, not the list of documents."""
    documents = np.array([0, 5, 12, 30])
    stream = ContiguousStream(np.arange(10), 1, 8, documents=documents)
    assert pairs(list(one_epoch(stream))) == [(i, i + 1) for i in range(9) if i != 4]
    packed = SentenceStream(np.arange(10), documents, 1, 4, shuffle=False)
    assert pairs(list(one_epoch(packed))) == [(i, i + 1) for i in (0, 1, 2, 3, 5, 6, 7, 8)]


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_text_too_short_is_refused(size: int) -> None:
    with pytest.raises(MnemoError, match=f"{size} tokens are too few for 4 rows"):
        ContiguousStream(np.zeros(size, dtype=np.uint8), 4, 5)


@pytest.mark.parametrize("shape", [{"batch": 0}, {"segment": 0}, {"context": -1}])
def test_shapes_are_checked(shape: dict[str, Any]) -> None:
    with pytest.raises(MnemoError, match="must be positive"):
        ContiguousStream(np.arange(50), **{"batch": 2, "segment": 5, **shape})


def test_documents_exclude_context_and_drop_last() -> None:
    documents = np.array([0, 9])
    with pytest.raises(MnemoError, match="context and drop_last are not supported"):
        ContiguousStream(np.arange(50), 2, 5, documents=documents, context=2)
    with pytest.raises(MnemoError, match="context and drop_last are not supported"):
        ContiguousStream(np.arange(50), 2, 5, documents=documents, drop_last=True)


@pytest.mark.parametrize("documents", [[], [3, 3], [5, 2], [-1, 4], [[0, 1]]])
def test_documents_must_ascend(documents: list[Any]) -> None:
    with pytest.raises(MnemoError, match="ascending"):
        ContiguousStream(np.arange(50), 2, 5, documents=np.array(documents, dtype=np.int64))


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    ids = np.array([1, 2, 3, 9, 4, 5])
    whole = ContiguousStream(ids, 1, 5, vocab_size=10)
    assert next(one_epoch(whole)).tokens.tolist() == [[1, 2, 3, 9, 4]]
    with pytest.raises(MnemoError, match="token id 9 is beyond the vocabulary of 9"):
        next(one_epoch(ContiguousStream(ids, 1, 5, vocab_size=9)))
    with pytest.raises(MnemoError, match="token id 9 is beyond the vocabulary of 9"):
        SentenceStream(ids, np.array([0]), 1, 5, shuffle=False, vocab_size=9)


def test_a_cursor_of_another_stream_is_refused() -> None:
    other = ContiguousStream(np.arange(50), 3, 5).start()
    with pytest.raises(MnemoError, match="cursor does not belong to a stream of 2 rows"):
        ContiguousStream(np.arange(50), 2, 5).read(other)
    with pytest.raises(MnemoError, match="cursor does not belong to a stream of 2 rows"):
        SentenceStream(np.arange(50), np.array([0, 9]), 2, 5).read(other)
