"""BABILong: stories, background, samples of any length, and the comparison with the published generator.

`babilong/published.json` holds samples of the generator of booydar/babilong at the commit that it names, with bytes as
tokens.
"""

from __future__ import annotations

import json
import lzma
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mnemo import MnemoError
from mnemo.cli import main
from mnemo.data.babilong import (
    BabiLong,
    Background,
    generated_sentences,
    generated_stories,
    is_right,
    load_data,
    parse_stories,
    prepare_babilong,
    sentences,
    wilson_interval,
)
from mnemo.data.babilong.generated import OBJECTS, PERSONS, PLACES

PUBLISHED = json.loads((Path(__file__).parent / "babilong" / "published.json").read_text())
FEW = "1 Mary moved to the bathroom.\n2 John went to the hallway.\n3 Where is Mary? \tbathroom\t1\n"


def as_bytes(texts: Sequence[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


def text_of(ids: np.ndarray) -> str:
    return bytes(int(token) for token in ids).decode()


def small_task(task: str = "qa1", end: Sequence[int] = ()) -> BabiLong:
    background = Background.of(generated_sentences(200, 7), as_bytes)
    return BabiLong(generated_stories(task, 20, 0), background, as_bytes, end=end)


@pytest.mark.parametrize("length", [300, 700])
def test_contexts_equal_those_of_the_published_generator(length: int) -> None:
    background = Background.of((text for book in PUBLISHED["books"] for text in sentences(book)), as_bytes)
    task = BabiLong(parse_stories(PUBLISHED["stories"]), background, as_bytes)
    expected = PUBLISHED["samples"][str(length)]
    found = list(task.in_published_order(length))
    assert [text_of(sample.context) for sample in found] == [sample["context"] for sample in expected]
    assert [list(sample.places) for sample in found] == [sample["places"] for sample in expected]
    for sample, other in zip(found, expected, strict=True):
        assert sample.story.question == other["question"] and sample.story.answer == other["answer"]
        assert list(sample.story.facts) == other["facts"] and list(sample.story.references) == other["references"]


@pytest.mark.parametrize("length", [300, 1000, 5000])
def test_samples_have_their_length_and_depend_on_their_number_only(length: int) -> None:
    task = small_task(end=[0])
    sample = task.sample(3, length, whole=True)
    assert len(sample.ids) == length and len(task.sample(3, length).context) == length
    np.testing.assert_array_equal(sample.ids, small_task(end=[0]).sample(3, length, whole=True).ids)
    assert not np.array_equal(sample.ids, task.sample(3, length, seed=1, whole=True).ids)
    again = task.sample(3 + len(task), length, whole=True)
    assert again.story == sample.story and not np.array_equal(again.ids, sample.ids)


def test_facts_are_in_order_and_the_question_is_last() -> None:
    sample = small_task(end=[0]).sample(7, 900)
    context = text_of(sample.context)
    places = [context.index(fact) for fact in sample.story.facts]
    assert places == sorted(places)
    assert text_of(sample.ids[:-1]).endswith(f"Question: {sample.story.question}\nAnswer: {sample.story.answer}")
    assert sample.ids[-1] == 0
    without = np.concatenate(list(sample.pieces(64)))
    assert text_of(without).endswith("Answer:") and all(len(piece) == 64 for piece in list(sample.pieces(64))[:-1])


@pytest.mark.parametrize("within", [0, 300, 500, 900])
def test_facts_can_be_kept_within_the_first_tokens(within: int) -> None:
    task = small_task(end=[0])
    ends = []
    for number in range(40):
        sample = task.sample(number, 900, facts_within=within)
        context, needed = text_of(sample.context), sum(len(fact) + 1 for fact in sample.story.facts)
        places = [context.index(fact) for fact in sample.story.facts]
        ends.append(places[-1] + len(sample.story.facts[-1]))
        assert places == sorted(places) and ends[-1] <= max(within, needed) and len(context) == 900
    assert within == 0 or max(ends) > within - 100
    whole, anywhere = (task.sample(7, 900, facts_within=within) for within in (900, None))
    np.testing.assert_array_equal(whole.ids, anywhere.ids)


def test_a_short_sample_holds_the_facts_alone() -> None:
    sample = small_task().sample(2, 0)
    assert text_of(sample.context) == "".join(f" {fact}" for fact in sample.story.facts)
    with pytest.raises(MnemoError, match="no room for its facts and question"):
        small_task().sample(2, 20, whole=True)


def test_background_starts_again_after_its_last_sentence() -> None:
    background = Background.of(["a" * 11, "b" * 20, "short"], as_bytes)
    assert len(background) == 2
    tokens, borders = background.span(1, 60)
    assert text_of(tokens) == f" {'b' * 20} {'a' * 11} {'b' * 20} {'a' * 5}"
    assert borders.tolist() == [0, 21, 33, 54, 60]
    with pytest.raises(MnemoError, match="no sentence of at least 10 tokens"):
        Background.of(["short"], as_bytes)


def test_generated_stories_have_the_right_answers() -> None:
    for story in generated_stories("qa1", 200, 3):
        person = story.question.removeprefix("Where is ").removesuffix("?")
        last = [fact for fact in story.facts if fact.startswith(person)][-1]
        assert last.endswith(f"the {story.answer}.") and story.references == (last,)
    for story in generated_stories("qa2", 200, 3):
        assert story.answer in PLACES and story.question.removeprefix("Where is the ").removesuffix("?") in OBJECTS
        assert any(fact.endswith(f"the {story.answer}.") for fact in story.facts)
    assert generated_stories("qa1", 5, 0) != generated_stories("qa1", 5, 1)
    words = set(" ".join(generated_sentences(500, 0)).replace(".", "").split())
    assert not words & {*PERSONS, *PLACES, *OBJECTS}
    with pytest.raises(MnemoError, match="unknown task without files 'qa9'"):
        generated_stories("qa9", 1, 0)


def test_object_stories_follow_the_holder() -> None:
    """A separate reading of the facts: an object is where its holder is, or where it was dropped."""
    for story in generated_stories("qa2", 300, 11):
        where: dict[str, str] = {}
        holder: dict[str, str] = {}
        place: dict[str, str] = {}
        for fact in story.facts:
            person, thing = fact.split()[0], fact.split()[-1].rstrip(".")
            if thing in PLACES:
                where[person] = thing
            elif any(verb in fact for verb in ("dropped", "left", "put down", "discarded")):
                place[thing] = where[holder.pop(thing)]
            else:
                holder[thing] = person
        thing = story.question.removeprefix("Where is the ").removesuffix("?")
        assert story.answer == (where[holder[thing]] if thing in holder else place[thing])


def test_the_benchmarks_rule_for_answers() -> None:
    ask = "Where is Mary?"
    assert is_right("qa1", ask, "office", "The most recent location of Mary is Office. kitchen")
    assert not is_right("qa1", ask, "office", "office or kitchen")
    assert not is_right("qa1", ask, "office", "She is nowhere. office")
    assert is_right("qa5", "Who did Bill give the milk to?", "Mary", "Bill gave the milk to Mary")


def test_wilson_interval() -> None:
    low, high = wilson_interval(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson_interval(0, 20)[0] == 0.0 and wilson_interval(20, 20)[1] == 1.0 and wilson_interval(0, 0) == (0, 1)


@pytest.mark.parametrize("text", ["", "hello\n", "x Mary moved.\n", "1 Mary moved to the office.\n"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(MnemoError, match=r"the text (is not a text|has no questions) of the bAbI tasks"):
        parse_stories(text)


def write_sources(folder: Path, num_books: int = 4) -> tuple[Path, Path]:
    (folder / "qa1_single_train.txt").write_text(FEW * 40)
    (folder / "qa1_single_test.txt").write_text(FEW)
    with tarfile.open(folder / "babi.tar", "w") as archive:
        for split in ("train", "test"):
            archive.add(folder / f"qa1_single_{split}.txt", f"en/qa1_single_{split}.txt")
    (folder / "books").mkdir()
    for number in range(num_books):
        (folder / "books" / f"{number}.txt").write_text(f"Book {number} begins. It has one more sentence.")
    return folder / "babi.tar", folder / "books"


def test_prepared_books_of_the_splits_are_different(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    babi, books = write_sources(tmp_path)
    command = ["prepare", "babilong", "--from", str(babi), "--books", str(books), "--root", str(tmp_path / "data")]
    assert main(command) == 0 and "books.train" in capsys.readouterr().out
    data = load_data("qa1", tmp_path / "data" / "babilong")
    texts = {split: set(data.sentences(split)) - {"It has one more sentence."} for split in ("train", "valid", "test")}
    assert {split: len(found) for split, found in texts.items()} == {"train": 2, "valid": 1, "test": 1}
    assert len(set.union(*texts.values())) == 4
    assert len(data.stories("train")) + len(data.stories("valid")) == 40 and len(data.stories("test")) == 1
    assert len(list(data.sentences("train", most=1))) == 1
    assert main(command) == 2 and "prepared already" in capsys.readouterr().err
    assert main([*command, "--replace"]) == 0


def test_named_splits_of_books_are_kept(tmp_path: Path) -> None:
    babi, books = write_sources(tmp_path, 0)
    for split in ("train", "valid", "test"):
        (books / f"novels.{split}.txt.xz").write_bytes(lzma.compress(f"Of {split}. One.\0Two of {split}.".encode()))
    prepare_babilong(babi, books, tmp_path / "data")
    data = load_data("qa1", tmp_path / "data")
    assert list(data.sentences("test")) == ["Of test.", "One.", "Two of test."]


def test_mistakes_with_prepared_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    babi, books = write_sources(tmp_path, 2)
    with pytest.raises(MnemoError, match="has 2 books; training, validation and test need different ones"):
        prepare_babilong(babi, books, tmp_path / "data")
    (books / "2.txt").write_text("A third book.")
    with pytest.raises(MnemoError, match="has no files of the bAbI tasks"):
        prepare_babilong(books, books, tmp_path / "data")
    prepare_babilong(babi, books, tmp_path / "data")
    with pytest.raises(MnemoError, match="has no task 'qa2'; it has qa1"):
        load_data("qa2", tmp_path / "data")
    with pytest.raises(MnemoError, match="is not prepared: mnemo prepare babilong"):
        load_data("qa1", tmp_path)
    (tmp_path / "data" / "books.test.txt.xz").write_bytes(lzma.compress(b"Another book."))
    with pytest.raises(MnemoError, match="is not as it was prepared"):
        list(load_data("qa1", tmp_path / "data").sentences("test"))
    assert main(["prepare", "babilong", "--from", str(babi)]) == 2
    assert "babilong needs the bAbI tasks and books" in capsys.readouterr().err
