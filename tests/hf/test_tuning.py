"""Tuning: batches, the curriculum, exact resume, accuracy by segments, the command and its files."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.real_models import TINY_LLAMA, llama_with_filled_memory, tiny_llama, tiny_tokenizer
from helpers.tiny_tuning import tiny_tuning as options

from mnemo import MnemoError
from mnemo.cli import main
from mnemo.data.babilong import BabiLongData, folder
from mnemo.data.babilong.generated import PERSONS
from mnemo.hf import add_memory, load_adapter
from mnemo.hf.tuning import book_loss as books_module
from mnemo.hf.tuning import speed as speed_module
from mnemo.hf.tuning import trainer
from mnemo.hf.tuning.accuracy import TEST_SEED, accuracy, accuracy_by_segments, answered, up_to_mistake
from mnemo.hf.tuning.batches import BookDraw, Draw, build_task, check_room, collate
from mnemo.hf.tuning.book_loss import book_loss
from mnemo.hf.tuning.curriculum import CurriculumState
from mnemo.hf.tuning.results import draw_results
from mnemo.hf.tuning.trainer import build_optimizer
from mnemo.hf.tuning.tune import equal_batches, load_model, speed, tune
from mnemo.hf.tuning.zero_shot import NEW_TOKENS, prompt_of
from mnemo.recipes.tuning import Stage, Tuning, usual_stages

transformers = pytest.importorskip("transformers")
IGNORED = -100


@pytest.fixture(autouse=True, scope="module")
def little_text() -> Iterator[None]:
    """Less text to hide facts in, all of which is encoded before training starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "GENERATED_SENTENCES", 500)
        yield


@pytest.fixture(scope="module")
def task() -> Any:
    return build_task(BabiLongData("qa1"), "test", tiny_tokenizer())


def test_training_ends_without_a_limit_by_the_user() -> None:
    assert options(steps=None).time_limit == 20 and options(steps=None, minutes=3).time_limit == 3
    assert options(steps=5).time_limit is None and options(steps=5, minutes=3).time_limit == 3


def test_the_beginning_and_an_early_end_are_printed(tmp_path: Path) -> None:
    lines: list[str] = []
    tune(options(out=tmp_path, steps=2, promote=1.0, test=("1x96:2",)), say=lines.append)
    assert lines[0] == "training for 2 steps, stages 1x96 2x64; a line every 2 steps"
    assert lines[1].startswith("first step: ") and any("the memory learned nothing" in line for line in lines)


def test_stages() -> None:
    assert Stage.parse("4", 512) == Stage(4, 512) and Stage.parse("4x128", 512) == Stage(4, 128)
    by_default = options(stages=("1x96", "2", "4"), test=()).tests
    assert by_default == [(Stage(segments, 64), 4) for segments in (2, 4, 8, 16)]
    assert options(test=("1x96", "128:50")).tests == [(Stage(1, 96), 4), (Stage(128, 64), 50)]
    for wrong in ("4:", "4:0", "4:x", "4:-1"):
        with pytest.raises(MnemoError, match="is no test"):
            options(test=(wrong,))
    for wrong in ("0", "x", "4x0", "-1", ""):
        with pytest.raises(MnemoError, match="is no stage"):
            options(stages=(wrong,))
    with pytest.raises(MnemoError, match="--batch 8 must be a multiple of --micro-batch 3"):
        options(micro_batch=3)


def test_rows_end_anywhere_in_their_last_segment_and_only_answers_have_labels(task: Any) -> None:
    draw = Draw(task, [Stage(1, 96), Stage(3, 64)], options(micro_batch=16, batch=16, mix=0.0, far=0.0))
    batch = draw.micro_batch(5, 0, 1)
    assert batch["input_ids"].shape == (16, 192) and (batch["segments"], batch["segment"]) == (3, 64)
    lengths = batch["attention_mask"].sum(1)
    assert lengths[0] == 192 and 128 < int(lengths.min()) < 192
    for row, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        answer = labels[labels != IGNORED]
        assert torch.equal(row[-len(answer) :], answer) and answer[-1] == tiny_tokenizer().eos_token_id
        assert 2 <= len(answer) <= 8
    again = draw.micro_batch(5, 0, 1)
    assert torch.equal(again["input_ids"], batch["input_ids"])
    assert not torch.equal(draw.micro_batch(6, 0, 1)["input_ids"][0], batch["input_ids"][0])


def test_earlier_stages_are_mixed_in(task: Any) -> None:
    draw = Draw(task, [Stage(1, 96), Stage(2, 64), Stage(3, 64)], options(micro_batch=1, mix=0.5, far=0.0))
    drawn = [draw.micro_batch(step, 0, 2)["segments"] for step in range(60)]
    assert 15 < drawn.count(3) < 45 and drawn.count(1) > 3 and drawn.count(2) > 3
    assert {draw.micro_batch(step, 0, 0)["segments"] for step in range(10)} == {1}


def test_far_samples_have_all_facts_before_the_last_segment(task: Any) -> None:
    """The last segment of far samples names none of their persons; one segment and other samples do not change."""
    stages, tokenizer = [Stage(1, 96), Stage(4, 64)], tiny_tokenizer()
    shares = {far: Draw(task, stages, options(micro_batch=32, batch=32, mix=0.0, far=far)) for far in (0.0, 0.5, 1.0)}

    def near(far: float, step: int) -> int:
        """Rows with a fact in their last segment, before the question."""
        batch = shares[far].micro_batch(step, 0, 1)
        mask = batch["attention_mask"].bool()
        texts = [tokenizer.decode(ids[kept][192:]) for ids, kept in zip(batch["input_ids"], mask, strict=True)]
        before = [text.partition("Question")[0] for text in texts if "Question" in text]
        return sum(any(name in text for name in PERSONS) for text in before)

    found = {far: sum(near(far, step) for step in range(4)) for far in shares}
    assert found[1.0] == 0 and 0.3 * found[0.0] < found[0.5] < 0.75 * found[0.0]
    assert torch.equal(*(shares[far].micro_batch(3, 0, 0)["input_ids"] for far in (0.0, 1.0)))
    assert torch.equal(*(shares[0.5].micro_batch(3, 0, 1)["input_ids"] for _ in range(2)))
    with pytest.raises(MnemoError, match="--far and --recall are shares from 0 to 1"):
        options(far=1.5)


def test_recalled_facts_fill_the_last_segment_and_have_labels(task: Any) -> None:
    stages, tokenizer = [Stage(1, 96), Stage(3, 96)], tiny_tokenizer()
    most = options(micro_batch=16, batch=16, mix=0.0, far=1.0, recall=1.0)
    batch = Draw(task, stages, most).micro_batch(0, 0, 1)
    assert batch["input_ids"].shape == (16, 288) and "attention_mask" not in batch
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        before, last = tokenizer.decode(ids[:192]), tokenizer.decode(ids[192:])
        text, _, question = last.partition("Question:")
        facts = text.partition("Facts:")[2].strip()
        assert facts and all(f"{fact}." in " ".join(before.split()) for fact in facts.strip(".").split(". "))
        assert (labels[:192] == IGNORED).all()
        assert tokenizer.decode(labels[labels != IGNORED]).startswith(facts)
        assert question.rpartition("Answer:")[2].strip() in tokenizer.decode(labels[labels != IGNORED])
    alone = {share: Draw(task, stages, dataclasses.replace(most, recall=share)) for share in (0.0, 0.5)}
    labelled = {share: [*(draw.micro_batch(0, 0, 1)["labels"] != IGNORED).sum(1)] for share, draw in alone.items()}
    assert max(labelled[0.0]) <= 8 and 4 <= sum(count > 8 for count in labelled[0.5]) <= 12
    assert torch.equal(*(draw.micro_batch(3, 0, 0)["input_ids"] for draw in alone.values()))  # a single segment
    with pytest.raises(MnemoError, match="--recall are shares from 0 to 1"):
        options(recall=1.5)


def test_as_many_facts_are_recalled_as_fit(task: Any) -> None:
    number = max(range(50), key=lambda number: len(task.stories[number].facts))
    plain = task.sample(number, 300, whole=True)
    assert plain.recalled == () and len(plain.labels) == 300
    ending = len(plain.question) + len(plain.answer)
    facts = [task.encoded(f" {fact}") for fact in plain.story.facts]
    announced = task.sample(number, 300, whole=True, recall_within=200)
    assert announced.recalled == tuple(token for fact in facts for token in fact) and len(announced.ids) == 300
    room = ending + len(announced.recall) + len(facts[-1])
    assert task.sample(number, 300, whole=True, recall_within=room).recalled == facts[-1]
    assert task.sample(number, 300, whole=True, recall_within=room - 1).ids.tolist() == plain.ids.tolist()


@pytest.mark.parametrize("kind", ["tokens", "associative"])
def test_memory_tokens_start_from_a_text(kind: str) -> None:
    text = " Where is Mary?"
    ids = tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]
    model, _ = load_model(options(start_text=text, tokens=len(ids) + 2, memory=kind))
    embedded = model.get_input_embeddings()(torch.tensor([*ids, *ids[:2]]))
    assert torch.equal(model.memory_tokens.initial, embedded)
    with pytest.raises(MnemoError, match="without tokens"):
        load_model(options(start_text=""))
    with pytest.raises(MnemoError, match="--start-text needs at least one memory token"):
        options(start_text=text, tokens=0)


def test_a_mixed_batch_equals_its_rows(task: Any) -> None:
    """Rows of different numbers of segments, padded on the left: the loss is the mean over the rows' answers."""
    model = add_memory(tiny_llama().double(), tokens=4, segment=64, bptt=None).train()
    samples = [task.sample(number, length, whole=True) for number, length in enumerate((90, 128, 170, 256))]
    together = collate(samples)
    assert together["attention_mask"].sum(1).tolist() == [90, 128, 170, 256]
    counts = torch.tensor([len(sample.answer) for sample in samples])
    alone = torch.stack([model(**collate([sample])).loss for sample in samples])
    torch.testing.assert_close(model(**together).loss, (alone * counts).sum() / counts.sum(), rtol=1e-10, atol=1e-10)


def test_gguf_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []

    def load(folder: str, **source: Any) -> Any:
        asked.append((folder, source))
        raise ImportError("gguf")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    file = tmp_path / "model.Q4.gguf"
    assert main(["tune", str(file)]) == 2 and "model.Q4.gguf' does not exist" in capsys.readouterr().err
    file.write_bytes(b"GGUF")
    assert main(["tune", str(file)]) == 2 and "pip install gguf" in capsys.readouterr().err
    assert asked == [(str(tmp_path), {"gguf_file": "model.Q4.gguf"})]


def test_stages_without_room_are_refused(task: Any) -> None:
    with pytest.raises(MnemoError, match="stage 1x64 has 64 tokens, but a story with its question has"):
        check_room(task, [Stage(2, 64), Stage(1, 64)])


def test_curriculum() -> None:
    state = CurriculumState()
    assert not state.record(10, 0.5, 0.9, 2) and state.record(20, 0.95, 0.9, 2) and not state.record(30, 1.0, 0.9, 2)
    assert [state.stage_at(step) for step in (0, 19, 20, 99)] == [0, 0, 1, 1]
    assert [state.rate(step, 4) for step in (0, 3, 50)] == [0.25, 1.0, 1.0]
    state.cooldown = (50, 60)
    assert [state.rate(step, 4) for step in (50, 55, 60, 70)] == [1.0, 0.5, 0.0, 0.0]
    state.end_at(55, 75)  # slower: the rate goes on from one half
    assert [state.rate(step, 4) for step in (55, 65, 75)] == [0.5, 0.25, 0.0]
    again = CurriculumState()
    again.load(json.loads(json.dumps(state.as_dict())))
    assert again == state


def test_memory_parameters_have_their_own_rate() -> None:
    model = add_memory(tiny_llama(), tokens=4, segment=64)
    groups = build_optimizer(model, options(memory_rate=10.0)).param_groups
    assert [group["lr"] for group in groups] == [1e-3, 1e-2]
    assert groups[1]["params"][0] is model.memory_tokens.initial


def test_right_answers_are_those_that_greedy_decoding_generates(task: Any) -> None:
    """Samples whose answer is what the model generates, or is not; with memory and without."""
    model: Any = add_memory(tiny_llama(), tokens=4, segment=64).eval()
    samples = [task.sample(number, 192, whole=True) for number in range(3)]
    changed = []
    for sample in samples:
        count = len(sample.answer)
        prompt = torch.from_numpy(sample.ids[:-count])[None]
        written = model.generate(prompt, max_new_tokens=count, do_sample=False, eos_token_id=None)[0, -count:]
        changed.append(dataclasses.replace(sample, answer=tuple(written.tolist())))
    found = answered(model, changed, 64)
    assert found.right.tolist() == [True] * 3
    for sample, written in zip(changed, found.written[0], strict=True):
        assert tuple(written[-len(sample.answer) :]) == sample.answer
    assert answered(model, samples, 64)[0].tolist() == [False] * 3
    wrong = dataclasses.replace(changed[1], answer=(*changed[1].answer[:-1], 5))
    assert answered(model, [changed[0], wrong], 64)[0].tolist() == [True, False]
    model.config.segment = 64
    (result,) = accuracy_by_segments(model, task, [Stage(3, 64)], 3)
    assert (result.samples, result.right, model.training) == (3, 0, False)


def test_the_cut_reads_the_last_segment_alone(task: Any) -> None:
    model = add_memory(tiny_llama(), tokens=4, segment=64).eval()
    sample = task.sample(0, 192, whole=True)
    alone = model(input_ids=torch.from_numpy(sample.ids)[None, 128:]).logits[0, -len(sample.answer) - 1 : -1].argmax(-1)
    fits = dataclasses.replace(sample, answer=tuple(alone.tolist()))
    # The first generated token does not depend on the answer; later ones are those after the old answer.
    assert answered(model, [dataclasses.replace(fits, answer=fits.answer[:1])], 64)[1].shape == (1,)
    found = answered(model, [sample], 192)
    assert torch.equal(found.right, found.right_cut)


def test_resume_is_exact_and_the_command_writes_its_files(tmp_path: Path) -> None:
    whole = tune(options(out=tmp_path / "whole", promote=0.0), say=lambda _: None)
    half = options(out=tmp_path / "half", promote=0.0, pause_after=0.0)
    assert tune(half, say=lambda _: None).folder is None  # pauses after each step
    said: list[str] = []
    for _ in range(2):
        tune(dataclasses.replace(half, resume=True), say=said.append)
    assert any("paused after step 3" in line for line in said)
    resumed = tune(dataclasses.replace(half, resume=True, pause_after=None), say=said.append)
    for (name, weight), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(weight, other), name
    assert whole.results == resumed.results
    content = json.loads((tmp_path / "whole" / "results.json").read_text())
    assert [result["length"] for result in content["results"]] == [96, 128]
    assert content["curriculum"]["begins"] == [0, 2] and (tmp_path / "whole" / "accuracy.svg").is_file()
    metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["stage"]) for line in metrics] == [(2, "1x96"), (4, "2x64")]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "model")
    assert (model.config.tokens, model.config.segment) == (4, 64)
    card = (tmp_path / "whole" / "model" / "README.md").read_text()
    assert "4 steps of 8 samples of BABILong qa1, stages 1x96, 2x64." in card and "2 x 64 tokens" in card
    more = tune(dataclasses.replace(half, resume=True, pause_after=None, test=("3:2",)), say=said.append)
    assert [(result.segments, result.samples) for result in more.results] == [(3, 2)]
    content = json.loads((tmp_path / "half" / "results.json").read_text())
    assert [(result["length"], result["samples"]) for result in content["results"]] == [(96, 4), (128, 4), (192, 2)]
    only_tested = tune(dataclasses.replace(half, resume=True, pause_after=None), say=said.append)
    assert only_tested.results == resumed.results


def test_a_resumed_run_has_its_own_rate_and_checkpoints(tmp_path: Path) -> None:
    first = options(out=tmp_path, steps=2, save_every=2)
    tune(first, say=lambda _: None)
    changed = dataclasses.replace(first, resume=True, steps=5, rate=1e-5, warmup=0, cooldown=0.0, save_every=3)
    tune(changed, say=lambda _: None)
    saved = json.loads((tmp_path / "checkpoint-5" / "trainer_state.json").read_text())
    assert saved["save_steps"] == 3
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["rate"] == 1e-5
    optimizer = torch.load(tmp_path / "checkpoint-5" / "optimizer.pt", weights_only=True)
    assert [group["lr"] for group in optimizer["param_groups"]] == [1e-5, 1e-5]


def test_usual_stages_begin_with_segments_of_the_length_of_a_story(tmp_path: Path) -> None:
    assert usual_stages(85, 512) == ("1x96", "2x64", "4x64", "8x64", "1", "2", "4", "8")
    assert usual_stages(464, 512) == ("1", "2", "4", "8")
    for longest in range(1, 300):
        stages = [Stage.parse(text, 4096) for text in usual_stages(longest, 4096)]
        assert all(stage.length >= longest for stage in stages)
    said: list[str] = []
    tune(options(out=tmp_path, stages=(), segment=256, steps=1, test=("1:1",)), say=said.append)
    assert said[0].startswith("training for 1 steps, stages 1x96 2x64 4x64 8x64 1x256 2x256 4x256 8x256;")


def test_minutes_end_training(tmp_path: Path) -> None:
    tuned = tune(options(out=tmp_path, steps=None, minutes=1e-6, test=("2",)), say=lambda _: None)
    assert [result.segments for result in tuned.results] == [2]
    assert (tmp_path / "checkpoint-1").is_dir()
    further = options(out=tmp_path, steps=3, minutes=9.0, test=("2",), resume=True)
    tune(further, say=lambda _: None)
    assert (tmp_path / "checkpoint-3").is_dir()


@pytest.mark.parametrize(("promoted", "share"), [((40,), 0.5), ((40, 65), 0.8)], ids=["before", "while the rate falls"])
def test_minutes_hold_if_later_stages_are_slower(promoted: Any, share: float, monkeypatch: Any) -> None:
    """Steps of 1 s; each stage takes 4 s longer, and its first step, like that of a call, is compiled for 10 s."""
    curriculum, clock = CurriculumState(), [0.0]
    monkeypatch.setattr(trainer.time, "monotonic", lambda: clock[0])
    some = options(minutes=4, steps=None, cooldown=share, check_every=1)
    stub: Any = SimpleNamespace(options=some, curriculum=curriculum, samples=SimpleNamespace())
    course: Any = trainer._Course(stub, stub, print)
    monkeypatch.setattr(course, "_check", lambda step: curriculum.record(step, step in promoted, 0.9, 3))
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    course.on_train_begin(SimpleNamespace(save_steps=500), state, control)
    rates = []
    while not control.should_training_stop:
        state.global_step += 1
        first = state.global_step - 1 in (0, *promoted)
        clock[0] += 1 + 4 * curriculum.stage + 10 * first
        course.on_step_end(None, state, control)
        rates.append(curriculum.rate(state.global_step, 1))
    assert curriculum.stage == len(promoted) and 235 <= clock[0] <= 240
    assert all(after <= before for before, after in itertools.pairwise(rates)) and rates[-1] == 0


@pytest.mark.parametrize("kind", ["tokens", pytest.param("associative", marks=pytest.mark.thorough)])
def test_lora_saves_an_adapter(kind: Any, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    tuned = tune(options(out=tmp_path, lora=2, memory=kind, steps=2, test=("2",)), say=lambda _: None)
    assert tuned.folder is not None and tuned.folder == tmp_path / "adapter"
    size = sum(path.stat().st_size for path in tuned.folder.rglob("*.safetensors"))
    assert size < TINY_LLAMA.joinpath("model.safetensors").stat().st_size / 2
    again = load_adapter(tuned.folder).eval()
    tokens = torch.arange(5, 105)[None]
    torch.testing.assert_close(again(input_ids=tokens).logits, tuned.model.eval()(input_ids=tokens).logits)


@pytest.mark.parametrize("kind", ["associative", pytest.param("tokens", marks=pytest.mark.thorough)])
def test_a_frozen_model_that_attends_to_the_previous_segment(kind: Any, tmp_path: Path) -> None:
    tuned = tune(options(out=tmp_path, memory=kind, attend_previous=True, freeze=True), say=lambda line: None)
    assert tuned.folder is not None and tuned.folder == tmp_path / "adapter"
    again, before = load_adapter(tuned.folder), tiny_llama()
    assert again.config.attend_previous
    for name, weight in before.state_dict().items():
        assert torch.equal(again.backbone.state_dict()[name], weight), name
    ids = torch.randint(100, (1, 150))
    for model in (again, tuned.model):
        model.config.segment = 64
        model.eval()
    assert torch.equal(again(input_ids=ids).logits, tuned.model(input_ids=ids).logits)
    with pytest.raises(MnemoError, match="--freeze trains the memory alone"):
        options(freeze=True, lora=2)


def test_long_tests_describe_the_memory_and_the_answers(task: Any) -> None:
    model = llama_with_filled_memory(False)
    found = accuracy(model, task, Stage(6, 64), 3, batch=2, decode=tiny_tokenizer().decode)
    assert [size["segments"] for size in found.growth] == [1, 2, 4]
    with torch.no_grad():
        ids = torch.stack([torch.from_numpy(task.sample(number, 384, TEST_SEED, whole=True).ids) for number in (0, 1)])
        model.config.segment = 64
        memory = model.eval()(input_ids=ids[:, :256], return_logits=False).memory
    expected = [float(layer.matrix.flatten(1).norm(dim=1).mean()) for layer in memory]
    assert found.growth[2]["matrix"] == pytest.approx(expected, rel=1e-3)
    assert len(found.strengths) == len(expected) and all(0 < strength < 1 for strength in found.strengths)
    assert [example["answer"] for example in found.examples] == [task.stories[number].answer for number in (0, 1)]
    assert found.seconds is not None and found.seconds > 0 and found.gigabytes is None
    assert [up_to_mistake(list(ids), (3, 4, 5)) for ids in ((1, 3, 4, 5), (1, 3, 9, 5), (9, 4, 5))] == [
        [3, 4, 5],
        [3, 9],
        [9],
    ]


def test_equal_batches() -> None:
    assert [equal_batches(*pair) for pair in ((500, 64), (50, 64), (64, 64), (101, 64), (7, 4))] == [50, 50, 64, 64, 4]


@pytest.fixture
def few_books(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss on books is computed on four texts of two segments."""
    monkeypatch.setattr(books_module, "ROWS", 4)
    monkeypatch.setattr(books_module, "SEGMENTS", 2)


@pytest.mark.usefixtures("few_books")
def test_loss_on_books_with_memory_and_in_separate_segments(tmp_path: Path) -> None:
    model, segment = llama_with_filled_memory(False), 32
    ids = torch.randint(5, 2000, (3, 96), generator=torch.Generator().manual_seed(1))
    found = book_loss(model, ids, segment, batch=2)
    pieces = ids.view(-1, segment)
    with torch.no_grad():
        alone = model.eval().backbone(input_ids=pieces, labels=pieces).loss
        whole = model(input_ids=ids, labels=torch.where(torch.arange(96) % segment > 0, ids, IGNORED)).loss
    assert found["separate"] == pytest.approx(float(alone), rel=1e-5)
    assert found["memory"] == pytest.approx(float(whole), rel=1e-5) and found["memory"] != found["separate"]
    tune(options(out=tmp_path, steps=1, test=("2:2",), book_loss=True, memory="associative"), say=lambda _: None)
    losses = json.loads((tmp_path / "results.json").read_text())["book_loss"]
    assert losses["before"]["memory"] == pytest.approx(losses["before"]["separate"], abs=1e-6)
    assert losses["after"]["separate"] != losses["before"]["separate"]


@pytest.mark.usefixtures("few_books")
def test_steps_on_books_keep_the_language(task: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = [Stage(1, 96), Stage(4, 64)]
    books = BookDraw(task.background, stages, 3, 0.25, 2, seed=0)
    assert [step for step in range(12) if books.has(step)] == [3, 7, 11]
    assert not any(BookDraw(task.background, stages, 3, 0.0, 2, seed=0).has(step) for step in range(99))
    batch = books.micro_batch(3, 0, 1)
    ids, labels = batch["input_ids"], batch["labels"]
    assert ids.shape == (3, 128) and (batch["segments"], batch["segment"]) == (2, 64)  # at most two segments
    tokens = "".join(f"<{token}>" for token in task.background.ids)
    assert "".join(f"<{token}>" for token in ids[0, :32].tolist()) in tokens
    kept = labels != IGNORED
    assert torch.equal(labels[kept], ids[kept]) and 0.05 < float(kept.float().mean()) < 0.25
    assert not torch.equal(books.micro_batch(3, 1, 1)["input_ids"], ids)
    tune(options(out=tmp_path, steps=8, book_steps=0.5, test=("2:2",), book_loss=True), say=lambda _: None)
    losses = json.loads((tmp_path / "results.json").read_text())["book_loss"]
    assert losses["after"]["memory"] < losses["before"]["memory"] - 1
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["loss"] > 0 and line["book_loss"] > 0 for line in lines)
    assert main(["tune", str(TINY_LLAMA), "--book-steps", "1"]) == 2
    assert "--book-steps 1.0 is a share from 0 to below 1" in capsys.readouterr().err


def test_zero_shot_prompts_fill_their_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 3 rows at a time: options of training, such as --batch 64, are not checked.
    words = ["tune", str(TINY_LLAMA), "--zero-shot", "--test", "1x400:3", "--micro-batch", "3", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path), "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["samples"], result["length"], len(result["examples"])) == (3, 400, 3)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["results"][0]["right"] == result["right"] and stored["options"]["zero_shot"] is True
    ids, sample = prompt_of(tiny_tokenizer(), build_task(BabiLongData("qa1"), "test", tiny_tokenizer()), "qa1", 1, 400)
    text = tiny_tokenizer().decode(ids)
    assert 340 < len(ids) <= 400 - NEW_TOKENS
    assert sample.story.question in text and all(fact in " ".join(text.split()) for fact in sample.story.facts)
    assert main([*words[:2], "--zero-shot", "--test", "1x60", "--device", "cpu", "--out", str(tmp_path / "other")]) == 2
    assert "60 tokens have no room for a prompt" in capsys.readouterr().err


def test_speed_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_module, "REPEATS", 1)
    results = speed(options(segment=16, micro_batch=1))
    assert [result["case"] for result in results] == ["training", "training, checkpointed", "reading"]
    assert all(result["ratio"] == result["memory"] / result["plain"] for result in results)
    assert "tokens/s" in capsys.readouterr().out


DOCS = TINY_LLAMA.parents[2] / "docs"


def description(svg: str) -> str:
    return svg.partition("<desc")[2].partition("</desc>")[0]


def test_the_stored_figures_are_those_of_their_measurements(tmp_path: Path) -> None:
    """Compare the numbers in the description; coordinates depend on the version of matplotlib."""
    pytest.importorskip("matplotlib")
    from mnemo.hf.tuning.comparison import draw_comparison

    drawn = draw_comparison(DOCS / "measurements" / "h200-babilong-comparison.json", tmp_path, "babilong-smollm2")
    assert [path.stem for path in drawn] == [f"babilong-smollm2{kind}" for kind in ("", "-seconds", "-gpu-memory")]
    for path in drawn:
        assert description(path.read_text()) == description((DOCS / "pictures" / path.name).read_text())
    accuracy, seconds, memory = (path.read_text() for path in drawn)
    assert "ARMT (published): 49.60 at tokens 50,000,000" in accuracy and "a guess" in accuracy
    assert (
        "memory tokens: 80.00 at tokens 65,536" in accuracy and "memory tokens, cut: 17.80 at tokens 65,536" in accuracy
    )
    assert "associative memory: 94.40 at tokens 65,536" in accuracy and "not trained: 6.500 at tokens 512" in accuracy
    assert "no memory: 99.50 at tokens 8,192" in accuracy
    assert "memory tokens: 0.052 at tokens 65,536" in seconds


@pytest.mark.parametrize(
    ("name", "digits"),
    [("", 0), ("-bounded", 1), ("-books", 1), ("-associative", 1), ("-memory-tokens", 1)],
)
def test_tables_of_the_guide_are_those_of_the_measurements(name: str, digits: int) -> None:
    found = json.loads((DOCS / "measurements" / f"h200-babilong{name}.json").read_text())
    page = (DOCS / "babilong.md").read_text()
    for result in found["results"]:
        low, high = (f"{100 * edge:.{digits}f}" for edge in result["interval"])
        accuracy, cut = (f"{100 * result[kind]:.{digits}f}" for kind in ("accuracy", "accuracy_cut"))
        row = f"| {result['segments']:,} | {result['length']:,} | {accuracy} [{low}, {high}] | {cut} |"
        assert f"{row} {result['samples']} |" in page


def test_a_figure_of_one_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = draw_results(DOCS / "measurements" / "h200-babilong.json", tmp_path / "new.svg").read_text()
    assert "with memory: 99.00 at tokens 65,536" in drawn and "memory cut: 15.00 at tokens 65,536" in drawn


@pytest.mark.parametrize("bounded", [True, False])
def test_bounded_memories_are_saved_as_such(bounded: bool, tmp_path: Path) -> None:
    model, _ = load_model(options(memory="associative", bounded=bounded))
    assert all(layer.config.bounded == bounded for layer in model.memory_tokens.layers)
    model.save_pretrained(tmp_path)
    again: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(layer.config.bounded == bounded for layer in again.memory_tokens.layers)


def test_by_default_the_memory_is_associative_bounded_and_learns_books_too(tmp_path: Path) -> None:
    chosen = {"segment": 64, "stages": ("2",), "test": ("2:2",), "device": "cpu", "check_samples": 2}
    usual = Tuning(model=str(TINY_LLAMA), out=tmp_path, steps=10, batch=2, micro_batch=2, check_every=10, **chosen)
    tune(usual, say=lambda _: None)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["options"]["memory"] == "associative" and results["options"]["bounded"]
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert line["book_loss"] > 0 and line["loss"] > 0
    assert load_model(dataclasses.replace(usual, tokens=0))[0].config.kind == "tokens"  # no memory at all


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        ("nosuch",): "'nosuch' is no folder; models of the Hugging Face hub",
        (str(TINY_LLAMA), "--data", str(tmp_path / "no")): "is no folder: mnemo prepare babilong",
        (str(TINY_LLAMA), "--task", "qa7"): "unknown task without files 'qa7'",
        (
            str(TINY_LLAMA),
            "--out",
            str(tmp_path),
            "--segment",
            "96",
            "--stages",
            "1",
            "--resume",
            "--device",
            "cpu",
        ): "has no checkpoint to resume",
        (str(TINY_LLAMA), "--stages", "a"): "'a' is no stage",
        (str(TINY_LLAMA), "--segment", "64", "--stages", "1x16", "--device", "cpu"): "stage 1x16 has 16 tokens",
    }
    for words, message in cases.items():
        assert main(["tune", *words]) == 2
        found = capsys.readouterr().err
        assert message in found and len([line for line in found.splitlines() if line.startswith("mnemo:")]) == 1
