"""A session equals the functions below it: `read`, `generate`, memory files, one model call per segment."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.marks import few
from helpers.mechanisms import MECHANISMS, few_first
from helpers.sessions import SEGMENT, TEXT, TOKENIZER, random_run, random_session
from helpers.tiny_runs import tiny_run
from helpers.tolerances import assert_close

from mnemo.errors import MnemoError
from mnemo.inference.generation import TextState, generate, read
from mnemo.inference.sampling import uniform_draws
from mnemo.inference.sampling_options import Sampling
from mnemo.memory.state import leaves
from mnemo.session.session import Session
from mnemo.session.text_run import encode_file, with_tokenizer
from mnemo.storage.run_folder import open_run

ALL = pytest.mark.parametrize("name", few_first())
SOME = pytest.mark.parametrize("name", few(MECHANISMS, lambda name: name in ("xl-plan", "rmt", "compressive", "qrnn")))
"""For what a session does alike with every memory."""


def ids(text: str) -> torch.Tensor:
    return torch.from_numpy(TOKENIZER.encode(text).astype("int64"))


def text_of(tokens: Any) -> str:
    return TOKENIZER.decode(tokens)


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(one), leaves(other), strict=True))


def alone(session: Session, text: str) -> torch.Tensor:
    """The output of the last token of a text that is read without any memory."""
    return read(session.model, ids(text), segment=SEGMENT)[0].hidden


def hidden(session: Session) -> torch.Tensor:
    """The output of the last token."""
    assert isinstance(session.state, TextState)
    return session.state.hidden


@ALL
def test_pieces_of_a_text_are_read_as_one_text(name: str) -> None:
    session = random_session(**MECHANISMS[name])
    whole, score = read(session.model, ids(TEXT), segment=SEGMENT)
    losses = [session.read(piece) for piece in (TEXT[:6], TEXT[6:7], TEXT[7:])]
    assert_close(torch.tensor([sum(loss.nats for loss in losses)]), torch.tensor([score.nats]))
    assert sum(loss.predicted for loss in losses) == score.tokens and losses[0].tokens == 6
    assert session.num_tokens == len(TEXT)
    for (_, mine), (_, theirs) in zip(leaves(session.state), leaves(whole), strict=True):
        assert_close(mine, theirs)


@SOME
def test_streamed_text_equals_generate(name: str) -> None:
    session = random_session(seed=3, **MECHANISMS[name])
    expected = generate(session.model, [ids(TEXT[:5])], num_tokens=11, segment=SEGMENT, seed=3)
    session.read(TEXT[:5])
    assert "".join(session.write(11)) == text_of(expected.tokens[0].tolist())
    assert same(session.state, expected.text_state)


@SOME
def test_a_reply_that_is_stopped_keeps_its_tokens(name: str) -> None:
    session = random_session(seed=3, **MECHANISMS[name])
    session.read(TEXT[:5])
    whole = session.fork().generate(9)
    with closing(session.write(9)) as pieces:
        begun = "".join(next(pieces) for _ in range(6))
    assert session.num_tokens == 11 and begun + session.generate(3) == whole


@SOME
def test_forks_are_independent(name: str) -> None:
    session = random_session(**MECHANISMS[name])
    session.read(TEXT[:6])
    before, other = session.state, session.fork()
    assert other.state is before
    first, again = session.generate(7), other.generate(7)
    assert first == again and same(session.state, other.state)
    assert isinstance(before, TextState) and before.tokens.tolist() == [6]


def test_a_fork_with_a_seed_continues_differently() -> None:
    session = random_session()
    session.read(TEXT[:6])
    session.sampling = Sampling(temperature=3)
    assert session.fork(seed=5).generate(40) != session.fork(seed=6).generate(40)


@ALL
def test_slots_fill_up_to_their_number(name: str) -> None:
    session = random_session(**MECHANISMS[name])
    empty = session.memory()
    attending = [layer for layer in empty.layers if layer.slots]
    assert all(layer.filled == 0 for layer in attending) and empty.memory_tokens == 0
    session.read(TEXT[: SEGMENT + 1])
    use = session.memory()
    assert (use.open, use.segment, use.tokens) == (1, SEGMENT, SEGMENT + 1)
    filled = [layer for layer in use.layers if layer.slots]
    rows = session.model.num_rows(SEGMENT)  # memory tokens are cached as well
    assert all(
        SEGMENT <= layer.filled <= rows or layer.filled == layer.slots
        for layer in filled
        if layer.mechanism != "Compressive"
    )
    assert all(0 < layer.filled <= layer.slots for layer in filled)
    for _ in range(4):
        session.read(TEXT)
    full = [layer for layer in session.memory().layers if layer.slots]
    assert all(layer.filled == layer.slots for layer in full)
    tokens = session.model.config.tokens
    assert session.memory().memory_tokens == (tokens.num if tokens is not None and tokens.carries else 0)


@SOME
def test_without_memory_every_segment_starts_empty(name: str) -> None:
    session = random_session(**MECHANISMS[name])
    session.set_memory(on=False)
    session.read(TEXT)
    last = len(TEXT) - len(TEXT) % SEGMENT
    assert_close(hidden(session), alone(session, TEXT[last:]))
    assert session.memory().line() == f"memory: off; segment 3/4; {len(TEXT)} tokens read"
    text = session.generate(2 * SEGMENT)
    start = last + len(text) - (last + len(text)) % SEGMENT
    assert_close(hidden(session), alone(session, (TEXT + text)[start:]))


@ALL
def test_memory_turned_off_inside_a_segment(name: str) -> None:
    session = random_session(**MECHANISMS[name])
    session.read(TEXT[:10])
    session.set_memory(on=False)
    assert_close(hidden(session), alone(session, TEXT[8:10]))
    assert session.num_tokens == 10


RESIZED = [
    (name, count)
    for name in ("xl", "xl-plan", "lookahead", "rmt-with-cache", "armt", "infinite", "compressive")
    for count in (8, 10)
]


@pytest.mark.parametrize(("name", "count"), few(RESIZED, lambda name, count: name == "xl" or count == 10))
def test_another_memory_length_counts_from_the_open_segment_on(name: str, count: int) -> None:
    """The same as a session that had the other length when the open segment began."""
    session, other = (random_session(**MECHANISMS[name]) for _ in range(2))
    session.read(TEXT[:count])
    session.set_memory(2)
    other.read(TEXT[:8])
    other.set_memory(2)
    if count > 8:
        other.read(TEXT[8:count])
    assert_close(hidden(session), hidden(other))
    assert session.score(TEXT).nats == pytest.approx(other.score(TEXT).nats, rel=1e-12)
    assert session.num_tokens == other.num_tokens == count


def test_memory_on_again_fills_from_empty() -> None:
    session = random_session(memory=5)
    session.read(TEXT[:12])
    session.set_memory(on=False)
    assert [layer.filled for layer in session.memory().layers] == [0, 0, 0]
    session.set_memory()
    session.read(TEXT[:4])
    assert [layer.filled for layer in session.memory().layers] == [4, 4, 4]


@SOME
def test_memory_files_keep_the_session(name: str, tmp_path: Path) -> None:
    session, other = random_session(seed=1, **MECHANISMS[name]), random_session(seed=1, **MECHANISMS[name])
    session.read(TEXT[:10])
    session.save(tmp_path / "a.memory")
    other.load(tmp_path / "a.memory")
    assert other.num_tokens == 10 and same(session.state, other.state)
    assert session.generate(9) == other.generate(9)


def test_memory_files_are_those_of_mnemo_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mnemo.cli import main

    (tmp_path / "book.txt").write_text("the cat sat under a tree\n" * 3)
    save = ["--save", str(tmp_path / "a.memory"), "--device", "cpu"]
    assert main(["read", str(tiny_run()), str(tmp_path / "book.txt"), *save]) == 0
    session = Session(with_tokenizer(open_run(tiny_run(), device="cpu")), sampling=Sampling(temperature=0))
    session.load(tmp_path / "a.memory")
    session.save(tmp_path / "b.memory")
    capsys.readouterr()
    options = ["--tokens", "12", "--temperature", "0", "--no-save", "--device", "cpu"]
    assert main(["generate", str(tiny_run()), "--memory", str(tmp_path / "b.memory"), *options]) == 0
    assert capsys.readouterr().out == session.generate(12) + "\n"


def test_a_loaded_open_segment_cannot_be_computed_again(tmp_path: Path) -> None:
    session = random_session()
    session.read(TEXT[:10])
    session.save(tmp_path / "a.memory")
    session.load(tmp_path / "a.memory")
    with pytest.raises(MnemoError, match="after 2 more tokens"):
        session.set_memory(on=False)
    assert session.remembers and session.memory().layers[0].slots == 5
    session.read("ab")
    session.set_memory(on=False)
    assert not session.remembers


def test_forgetting_and_scoring() -> None:
    session = random_session()
    first = session.score(TEXT)
    assert session.num_tokens == 0 and session.read(TEXT).nats == first.nats
    later = session.score(TEXT)
    assert later.nats != first.nats and later.predicted == len(TEXT) and session.num_tokens == len(TEXT)
    session.forget()
    assert session.score(TEXT).nats == first.nats
    assert repr(first).startswith(f"loss of {len(TEXT)} tokens (byte)\n  bits per byte ")
    assert "<td" in first._repr_html_()


def test_words_are_separated_from_the_text_before() -> None:
    session = Session(with_tokenizer(open_run(tiny_run("words"), device="cpu")), sampling=Sampling(temperature=0))
    session.read("the cat")
    assert session.generate(5).startswith((" ", "\n"))


def test_a_character_of_several_bytes_is_completed() -> None:
    run = with_tokenizer(open_run(tiny_run(), device="cpu"))
    session = Session(run)
    session.read("é".encode()[:1])
    decoder = run.tokenizer.decoder()
    decoder.feed([0xC3])
    token = generate(run.run.model, [torch.tensor([0xC3])], num_tokens=1, segment=session.segment).tokens
    assert session.generate(1) == decoder.feed(token[0].tolist()) + decoder.finish()


def test_an_unread_session_begins_a_document() -> None:
    run = with_tokenizer(open_run(tiny_run(), device="cpu"))
    expected = generate(run.run.model, [torch.tensor([0])], num_tokens=6, segment=8).tokens[0]
    assert Session(run).generate(6) == run.tokenizer.decode(expected.tolist())


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    session, other = random_session(), random_session()
    assert session.read_file(tmp_path / "a.txt").nats == other.read(TEXT).nats
    assert encode_file(TOKENIZER, tmp_path / "a.txt").tolist() == ids(TEXT).tolist()


def test_mistakes_are_errors(tmp_path: Path) -> None:
    session = random_session()
    with pytest.raises(MnemoError, match="nothing to save"):
        session.save(tmp_path / "a")
    with pytest.raises(MnemoError, match="must be positive"):
        session.write(0)
    with pytest.raises(MnemoError, match="the text: .*not in the vocabulary"):
        session.read("ABC")
    with pytest.raises(MnemoError, match="no text"):
        session.read("")
    with pytest.raises(MnemoError, match="negative"):
        session.set_memory(-1)
    with pytest.raises(MnemoError, match="between 0 and"):
        session.reseed(-1)
    with pytest.raises(MnemoError, match="negative"):
        Session(random_run(), memory_length=-2)
    with pytest.raises(MnemoError, match="temperature"):
        Session(random_run(), sampling=Sampling(temperature=-1))
    assert session.num_tokens == 0


def test_a_session_shows_itself() -> None:
    session = random_session(**MECHANISMS["xl-plan"])
    session.read(TEXT[:9])
    assert repr(session) == (
        "session of random: memory of 9 tokens\n"
        "  2 short layers, XL  ████████████████████ 2 of 2 slots\n"
        "  1 long layer, XL    ████████████████████ 7 of 7 slots\n"
        "  open segment        1 of 4 tokens\n"
        "  size                2.758 KiB\n"
        "  sampling            temperature 1"
    )
    layers = "2 short layers ██████████ 2/2, 1 long layer ██████████ 7/7"
    assert session.memory().line() == f"memory: {layers}; segment 1/4; 9 tokens read"
    assert "<caption>session of random" in session._repr_html_()


def test_draws_continue_from_call_to_call() -> None:
    """Two calls draw what one call would: a long reply may be asked for in parts."""
    draws = uniform_draws(4, 1, 6)[:, 0]
    generator = torch.Generator().manual_seed(4)
    assert torch.equal(torch.cat([torch.rand(1, generator=generator, dtype=torch.float64) for _ in range(6)]), draws)


@ALL
def test_a_loaded_memory_takes_another_length_or_says_why_not(name: str, tmp_path: Path) -> None:
    session = random_session(**MECHANISMS[name])
    session.read(TEXT[:10])
    session.save(tmp_path / "a.memory")
    session.load(tmp_path / "a.memory")
    try:
        session.set_memory(2)
    except MnemoError as error:
        assert "only where a segment ends" in str(error)
        session.read(TEXT[:2])
        session.set_memory(2)
    long = [
        layer for layer in session.memory().layers if layer.long and layer.mechanism in ("XL", "Lookahead", "Infinite")
    ]
    assert all(layer.slots == 2 for layer in long)
    assert session.read(TEXT).predicted == len(TEXT)


def test_weights_that_are_not_finite_are_an_error_and_no_score() -> None:
    session = random_session()
    with torch.no_grad():
        next(session.model.parameters()).fill_(float("nan"))
    with pytest.raises(MnemoError, match="the model's output is not finite"):
        session.read(TEXT)
