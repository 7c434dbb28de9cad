"""`tune`: give a model a memory, train it with a curriculum, measure it, and save it with its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from mnemo.data.babilong.folder import load_data
from mnemo.data.babilong.samples import BabiLong
from mnemo.errors import MnemoError, install_command, one_line
from mnemo.hf.memory_tokens.adapter import save_adapter
from mnemo.hf.memory_tokens.attach import add_memory, start_from_text
from mnemo.hf.memory_tokens.backbone import body_of
from mnemo.hf.memory_tokens.compiled_layers import compile_layers
from mnemo.hf.memory_tokens.curriculum import memory_model
from mnemo.hf.tuning.accuracy import Accuracy, Decode, accuracy
from mnemo.hf.tuning.batches import build_task, check_room
from mnemo.hf.tuning.book_loss import book_ids, book_loss
from mnemo.hf.tuning.curriculum import CurriculumState
from mnemo.hf.tuning.output_folder import (
    ADAPTER,
    MODEL,
    describe,
    last_checkpoint,
    record,
    require_free,
    require_same,
    require_stages,
    step_of,
)
from mnemo.hf.tuning.results import ResultsFile
from mnemo.hf.tuning.speed import measure_speed
from mnemo.hf.tuning.trainer import METRICS, MemoryTrainer, Say, StopAtSignal, compiling, precision_context
from mnemo.hf.tuning.zero_shot import zero_shot
from mnemo.memory import Associative
from mnemo.progress import ShowProgress, silent
from mnemo.recipes.tuning import Stage, Tuning, usual_stages
from mnemo.storage.weights import pick_device
from mnemo.training.stop_signals import Stop, stop_on_signals

NUM_RANDOM_TOKENS = 64
NUM_WARM_UP = 3
"""Segments that use all compiled functions: a first one, one between, and a last one"""


@dataclass(frozen=True)
class Tuned:
    model: Any
    tokenizer: Any
    results: list[Accuracy]
    """Empty if training was paused or stopped"""
    folder: Path | None
    """Folder for `from_pretrained`; None if training was paused or stopped"""
    steps: int
    """Steps of all calls"""
    signal: int | None = None
    """The signal that has stopped training"""


def tune(options: Tuning, say: Say = print, show: ShowProgress = silent) -> Tuned:
    """Train a model with memory on a task of BABILong, starting with few segments, and measure it by length.

    A signal such as that of Ctrl-C ends training after its step, with a checkpoint.
    """
    require_free(options)
    checkpoint = last_checkpoint(options) if options.resume else None
    data = load_data(options.task, options.data)
    tokenizer, backbone = load_backbone(options)
    made = describe(options, backbone)
    if checkpoint is not None:
        require_same(options, made)
    model = _prepared(backbone, options, tokenizer)
    train, held_out = (build_task(data, split, tokenizer, options.background) for split in ("train", "valid"))
    if not options.stages:
        options = replace(options, stages=usual_stages(train.longest_story(), options.segment))
    check_room(train, options.curriculum)
    options.out.mkdir(parents=True, exist_ok=True)
    if checkpoint is None:
        (options.out / METRICS).unlink(missing_ok=True)  # of a call that was ended before its first checkpoint
        record(options, made)
    else:
        require_stages(checkpoint, options)
    test = build_task(data, "test", tokenizer, options.background)
    check_room(test, [stage for stage, _ in options.tests])
    books = book_ids(test.background, options.segment) if options.book_loss else None
    before = None if books is None or options.resume else _book_loss(model, books, options)
    trainer = MemoryTrainer(model, options, train, held_out, say)
    with stop_on_signals(tell=True) as stop:
        steps = _train(trainer, checkpoint, stop)
    memory_model(model).config.segment = options.segment
    if stop.signal is not None:
        return Tuned(model, tokenizer, [], None, steps, stop.signal)
    if trainer.course.paused:
        say(f"paused after step {steps:,}; continue with --resume")
        return Tuned(model, tokenizer, [], None, steps)
    reached = options.curriculum[: trainer.curriculum.stage + 1]
    if options.tokens and all(stage.segments == 1 for stage in reached) and len(options.curriculum) > len(reached):
        say("training ended with samples of one segment, so that the memory learned nothing: train longer")
    file = ResultsFile(options, trainer.curriculum, steps, say)
    if before is not None:
        file.add_book_loss("before", before)
    if books is not None:
        file.add_book_loss("after", _book_loss(model, books, options))
    results = evaluate(model, test, options, tokenizer.decode, show, file.add)
    folder = save(model, tokenizer, options, results, steps)
    file.draw()
    return Tuned(model, tokenizer, results, folder, steps)


def _train(trainer: MemoryTrainer, checkpoint: Path | None, stop: Stop) -> int:
    """Train from the start or from a checkpoint, which is only loaded if it has all its steps; returns the steps."""
    done = 0 if checkpoint is None else step_of(checkpoint)
    if done < trainer.options.max_steps:
        trainer.add_callback(StopAtSignal(stop, trainer.course.say))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        return trainer.state.global_step
    if checkpoint is not None:
        trainer._load_from_checkpoint(str(checkpoint))
    return done


def _book_loss(model: Any, ids: Tensor, options: Tuning) -> dict[str, float]:
    device = memory_model(model).device
    with precision_context(options, device), torch.compiler.set_stance("force_eager"):
        return book_loss(model, ids, options.segment, options.micro_batch)


def measure_zero_shot(options: Tuning, say: Say = print, show: ShowProgress = silent) -> list[Accuracy]:
    """Test the model as it is, with prompts; writes results.json."""
    require_free(options)
    tokenizer, model = load_backbone(options)
    task = build_task(load_data(options.task, options.data), "test", tokenizer, options.background)
    file = ResultsFile(options, CurriculumState(), 0, say)
    results = []
    for stage, samples in options.tests:
        with precision_context(options, model.device):
            found = zero_shot(
                model, tokenizer, task, options.task, stage, samples, batch=options.micro_batch, show=show
            )
        results.append(found)
        file.add(found)
    return results


def load_model(options: Tuning) -> tuple[Any, Any]:
    """Load a model and add memory to it; returns it with its tokenizer."""
    tokenizer, backbone = load_backbone(options)
    return _prepared(backbone, options, tokenizer), tokenizer


def load_backbone(options: Tuning) -> tuple[Any, Any]:
    """Load the tokenizer and the model without memory."""
    path = Path(options.model)
    is_gguf = path.suffix == ".gguf"
    name, file = (str(path.parent), {"gguf_file": path.name}) if is_gguf else (options.model, {})
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **file)
        backbone: Any = AutoModelForCausalLM.from_pretrained(name, **file, dtype=torch.float32)
    except ImportError:
        if not is_gguf:
            raise
        raise MnemoError("GGUF files need the package gguf: pip install gguf") from None
    except (OSError, ValueError) as error:
        raise MnemoError(f"'{options.model}' cannot be loaded as a language model: {one_line(error)}") from None
    if is_gguf:
        backbone.config._name_or_path = path.stem  # for the model card, in place of the folder
    return tokenizer, backbone.to(pick_device(options.device))


def speed(options: Tuning, say: Say = print) -> list[dict[str, Any]]:
    """Measure tokens per second of the model with memory and without."""
    return measure_speed(load_model(options)[0], options, say)


def _prepared(backbone: Any, options: Tuning, tokenizer: Any) -> Any:
    """Add memory, and compile the layers if that is wanted."""
    model = _with_memory(backbone, options, tokenizer)
    if options.compiled:
        compile_layers(memory_model(model))
    return model


def _with_memory(model: Any, options: Tuning, tokenizer: Any) -> Any:
    """Add memory, and LoRA weights if they are trained instead of the model's; or freeze the model."""
    torch.manual_seed(options.seed)
    model = add_memory(
        model,
        options.tokens,
        options.segment,
        options.bptt,
        kind=options.kind,
        associative=_associative(model, options),
        start=options.start,
        attend_previous=options.attend_previous,
    )
    if options.start_text is not None:
        start_from_text(model, tokenizer(options.start_text, add_special_tokens=False)["input_ids"])
    if options.freeze:
        memory_model(model).backbone.requires_grad_(False)
    if not options.lora:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MnemoError(f"--lora needs peft: {install_command('hf')}") from None
    lora = LoraConfig(
        r=options.lora, lora_alpha=2 * options.lora, target_modules="all-linear", modules_to_save=["memory_tokens"]
    )
    return get_peft_model(model, lora)


def _associative(model: Any, options: Tuning) -> Associative | None:
    """Return the options of an associative memory; None for those of the paper, and for other kinds."""
    if options.kind != "associative" or not options.bounded:
        return None
    return Associative(bounded=True, row_size=typical_row_size(model))


@torch.no_grad()
def typical_row_size(backbone: Any) -> float:
    """Return the root mean square of the rows after a layer, for random tokens: the median of all layers."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = len(backbone.get_input_embeddings().weight)
    ids = torch.randint(vocabulary, (1, NUM_RANDOM_TOKENS), generator=generator).to(backbone.device)
    rows = body_of(backbone)(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[1:-1]
    # The first token of a text has far larger rows than others in many models.
    sizes = [layer[0, 1:].float().square().mean(-1).sqrt().median() for layer in rows]
    return round(float(torch.stack(sizes or [torch.ones(())]).median()), 2)


def evaluate(
    model: Any,
    task: BabiLong,
    options: Tuning,
    decode: Decode,
    show: ShowProgress = silent,
    report: Callable[[Accuracy], None] = lambda _: None,
) -> list[Accuracy]:
    """Measure the accuracy on test stories in test books; every result is reported as soon as it is known."""
    results, compiled = [], set()
    for stage, samples in options.tests:
        batch = equal_batches(samples, options.test_batch or options.micro_batch)
        with precision_context(options, memory_model(model).device), compiling(options, stage.tokens):
            if options.compiled and (stage.tokens, batch) not in compiled:  # outside of the time that is measured
                accuracy(model, task, Stage(NUM_WARM_UP, stage.tokens), batch, batch=batch)
                compiled.add((stage.tokens, batch))
            results.append(accuracy(model, task, stage, samples, batch=batch, show=show, decode=decode))
        report(results[-1])
    return results


def equal_batches(samples: int, most: int) -> int:
    """Return a number of rows that divides the samples: a last batch of another size would be compiled again.

    If only numbers below half of `most` divide them, it is `most`.
    """
    divisors = [rows for rows in range(1, min(samples, most) + 1) if samples % rows == 0]
    return divisors[-1] if 2 * divisors[-1] >= min(samples, most) else most


def save(model: Any, tokenizer: Any, options: Tuning, results: list[Accuracy], steps: int) -> Path:
    """Save the model with its tokenizer and card; with LoRA or a frozen backbone only what was trained."""
    only_trained = options.lora > 0 or options.freeze
    folder = options.out / (ADAPTER if only_trained else MODEL)
    if only_trained:
        save_adapter(model, folder)
    else:
        model.save_pretrained(folder)
        stages = ", ".join(map(str, options.curriculum))
        training = f"{steps:,} steps of {options.batch} samples of BABILong {options.task}, stages {stages}."
        scores = {f"{result.segments} x {result.tokens} tokens": _score(result) for result in results}
        model.save_card(folder, training=training, scores=scores)
    tokenizer.save_pretrained(folder)
    return folder


def _score(result: Accuracy) -> str:
    low, high = result.interval
    return f"{result.share:.1%} [{low:.1%}, {high:.1%}], memory cut {result.share_cut:.1%}"
