"""`tune`: give a model a memory, train it with a curriculum, measure it, and save it with its results."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mnemo.data.babilong.folder import BabiLongData, load_data
from mnemo.errors import MnemoError, install_command, one_line
from mnemo.hf.memory_tokens.adapter import save_adapter
from mnemo.hf.memory_tokens.attach import add_memory
from mnemo.hf.memory_tokens.backbone import body_of
from mnemo.hf.memory_tokens.curriculum import memory_model
from mnemo.hf.memory_tokens.layer_memory import layers_of
from mnemo.hf.tuning.accuracy import Accuracy, accuracy_by_segments
from mnemo.hf.tuning.batches import build_task, check_room
from mnemo.hf.tuning.results import write_results
from mnemo.hf.tuning.speed import measure_speed
from mnemo.hf.tuning.trainer import MemoryTrainer, Say, precision_context
from mnemo.memory import Associative, AssociativeMemory
from mnemo.progress import ShowProgress, silent
from mnemo.recipes.tuning import Tuning
from mnemo.storage.weights import pick_device

MODEL, ADAPTER = "model", "adapter"


@dataclass(frozen=True)
class Tuned:
    model: Any
    tokenizer: Any
    results: list[Accuracy]
    """Empty if training was paused"""
    folder: Path | None
    """Folder for `from_pretrained`; None if training was paused"""


def tune(options: Tuning, say: Say = print, show: ShowProgress = silent) -> Tuned:
    """Train a model with memory on a task of BABILong, starting with few segments, and measure it by length."""
    data = load_data(options.task, options.data)
    model, tokenizer = load_model(options)
    train, held_out = (build_task(data, split, tokenizer, options.background) for split in ("train", "valid"))
    check_room(train, options.curriculum)
    options.out.mkdir(parents=True, exist_ok=True)
    trainer = MemoryTrainer(model, options, train, held_out, say)
    _train(trainer, last_checkpoint(options.out) if options.resume else None)
    memory_model(model).config.segment = options.segment
    if trainer.course.paused:
        say(f"paused after step {trainer.state.global_step:,}; continue with --resume")
        return Tuned(model, tokenizer, [], None)
    results = evaluate(model, tokenizer, data, options, show)
    folder = save(model, tokenizer, options, results, trainer.state.global_step)
    write_results(options, results, trainer.curriculum, say)
    return Tuned(model, tokenizer, results, folder)


def _train(trainer: MemoryTrainer, checkpoint: str | None) -> None:
    """Train from the start or from a checkpoint; one that has all its steps already is only loaded."""
    done = 0 if checkpoint is None else int(checkpoint.rpartition("-")[2])
    if done < trainer.options.max_steps:
        trainer.train(resume_from_checkpoint=checkpoint)
    elif checkpoint is not None:
        trainer._load_from_checkpoint(checkpoint)


def load_model(options: Tuning) -> tuple[Any, Any]:
    """Load a model, add memory to it, and compile its layers if that is wanted; returns it with its tokenizer."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        backbone: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise MnemoError(f"'{options.model}' cannot be loaded as a language model: {one_line(error)}") from None
    model = _with_memory(backbone.to(pick_device(options.device)), options)
    if options.compiled:
        compile_layers(memory_model(model))
    return model, tokenizer


def speed(options: Tuning, say: Say = print) -> list[dict[str, Any]]:
    """Measure tokens per second of the model with memory and without."""
    return measure_speed(load_model(options)[0], options, say)


def _with_memory(model: Any, options: Tuning) -> Any:
    """Add memory, and LoRA weights if they are trained instead of the model's."""
    torch.manual_seed(options.seed)
    model = add_memory(
        model,
        options.tokens,
        options.segment,
        options.bptt,
        kind=options.memory,
        associative=Associative(bounded=True) if options.bounded else None,
        start=options.start,
    )
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


def compile_layers(model: Any) -> None:
    """Compile the layers of a model with memory, and reading and writing of associative memories between them.

    All layers share one program. An associative memory consists of many small operations, which it fuses.
    """
    for layer in layers_of(body_of(model.backbone)):
        layer.forward = torch.compile(layer.forward, dynamic=False)
    for module in model.modules():
        if isinstance(module, AssociativeMemory):
            module.add_read = torch.compile(module.add_read, dynamic=False)
            module.write = torch.compile(module.write, dynamic=False)
            module.write_first = torch.compile(module.write_first, dynamic=False)


def last_checkpoint(folder: Path) -> str:
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    if not found:
        raise MnemoError(f"{folder} has no checkpoint to resume")
    return str(found[-1])


def evaluate(model: Any, tokenizer: Any, data: BabiLongData, options: Tuning, show: ShowProgress) -> list[Accuracy]:
    """Measure the accuracy on test stories in test books."""
    task = build_task(data, "test", tokenizer, options.background)
    check_room(task, options.lengths)
    with precision_context(options, memory_model(model).device), _without_recompiling(options):
        return accuracy_by_segments(
            model, task, options.lengths, options.test_samples, batch=options.micro_batch, show=show
        )


def _without_recompiling(options: Tuning) -> AbstractContextManager[Any]:
    """Return a context in which shapes that training did not compile run uncompiled."""
    return torch.compiler.set_stance("eager_on_recompile") if options.compiled else nullcontext()


def save(model: Any, tokenizer: Any, options: Tuning, results: list[Accuracy], steps: int) -> Path:
    """Save the model with its tokenizer and card for `from_pretrained`; with LoRA only the trained weights."""
    folder = options.out / (ADAPTER if options.lora else MODEL)
    if options.lora:
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
