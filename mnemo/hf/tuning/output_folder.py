"""The folder that `mnemo tune` writes: whether it is free, and whether its last checkpoint fits the options.

tuning.json   written before training: the options that define the weights, and a checksum of the model without memory
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from mnemo.errors import MnemoError
from mnemo.files import checksum
from mnemo.files.json_file import load_json, write_json
from mnemo.files.safe_load import load_object
from mnemo.files.tensor_file import require_whole
from mnemo.hf.memory_tokens.backbone import body_of
from mnemo.hf.safe_folder import check_folder
from mnemo.hf.tuning.results import RESULTS
from mnemo.hf.tuning.trainer import DECISIONS
from mnemo.recipes.tuning import Tuning

MODEL, ADAPTER = "model", "adapter"
CHECKPOINT = "checkpoint-"
STATE = "trainer_state.json"
OPTIMIZER = ("optimizer.pt", "scheduler.pt")
RECORD = "tuning.json"
DEFINING = ("memory", "bounded", "tokens", "start", "attend_previous", "lora", "freeze")
"""Options that define the weights, or what the model computes with them; others can change on resume"""
NUM_SAMPLED = 256
"""Numbers of each weight in a model's checksum"""


def require_free(options: Tuning) -> None:
    """Refuse a folder with results, a model or checkpoints of an earlier call, unless these are resumed."""
    if options.out.is_file():
        raise MnemoError(f"{options.out} is a file; --out names a folder")
    training = [options.out / name for name in (MODEL, ADAPTER) if (options.out / name).exists()] + checkpoints(options)
    if options.zero_shot and training:
        raise MnemoError(f"{training[0]} is of a trained model: name another --out for a test without training")
    found = [path for path in (options.out / RESULTS,) if path.exists()] + training
    if found and not options.resume:
        resumable = options.zero_shot or checkpoints(options)
        further = "continue with --resume, or name another --out" if resumable else "name another --out"
        raise MnemoError(f"{found[0]} is of an earlier call, and would be replaced: {further}")


def checkpoints(options: Tuning) -> list[Path]:
    """Return the checkpoints of a folder, oldest first."""
    found = [path for path in options.out.glob(f"{CHECKPOINT}*") if _step(path).isdecimal()]
    return sorted(found, key=lambda path: int(_step(path)))


def last_checkpoint(options: Tuning) -> Path:
    """Return the checkpoint that is resumed, after its files were verified."""
    found = checkpoints(options)
    if not found:
        raise MnemoError(f"{options.out} has no checkpoint to resume")
    try:
        _require_weights(found[-1])
        if step_of(found[-1]) < options.max_steps:
            _require_training_state(found[-1])
    except MnemoError as error:
        if len(found) == 1:
            raise
        raise MnemoError(f"{error}; without {found[-1].name}, --resume continues {found[-2].name}") from None
    return found[-1]


def _require_weights(checkpoint: Path) -> None:
    weights = list(checkpoint.glob("*.safetensors"))
    if not weights:
        raise MnemoError(f"{checkpoint} has no weights")
    for path in weights:
        require_whole(path)
    check_folder(checkpoint)
    _require_file(checkpoint / DECISIONS)


def _require_training_state(checkpoint: Path) -> None:
    for name in (STATE, *OPTIMIZER):
        _require_file(checkpoint / name)
    load_object(checkpoint / STATE)
    for path in sorted([*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")]):
        if _is_damaged(path):
            raise MnemoError(f"{path} is damaged: training cannot go on from it")


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise MnemoError(f"{path} is missing: training cannot go on without it")


def _is_damaged(path: Path) -> bool:
    """Whether a file of torch.save, which is a ZIP archive, differs from the checksums in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is not None
    except Exception:  # also those of zlib, bz2, lzma and struct
        return True


def step_of(checkpoint: Path) -> int:
    return int(_step(checkpoint))


def _step(checkpoint: Path) -> str:
    return checkpoint.name.removeprefix(CHECKPOINT)


def describe(options: Tuning, backbone: Any) -> dict[str, Any]:
    """Return what checkpoints depend on; `backbone` is the model without memory, before training."""
    chosen = {name: getattr(options, name) for name in DEFINING}
    chosen |= {"memory": options.kind, "bounded": options.bounded or options.kind == "tokens"}
    return {"model": options.model, "weights": sampled_checksum(backbone), "options": chosen}


def record(options: Tuning, made: dict[str, Any]) -> None:
    write_json(options.out / RECORD, made)


@torch.no_grad()
def sampled_checksum(backbone: Any) -> str:
    """Return the checksum of the first numbers of every weight: models are told apart, whatever their folder is."""
    first = [weight.flatten()[:NUM_SAMPLED].float().cpu() for weight in body_of(backbone).parameters()]
    return checksum.of_bytes(torch.cat(first).numpy())


def require_same(options: Tuning, given: dict[str, Any]) -> None:
    """Refuse to resume with another model or memory than the folder's; folders of version 0.2.0 do not record it."""
    if not (options.out / RECORD).is_file():
        return
    made = load_json(options.out / RECORD)
    others = [_word(name, value) for name, value in made["options"].items() if value != given["options"].get(name)]
    if made["weights"] != given["weights"]:
        others.append(f"with {'other weights of ' if made['model'] == given['model'] else ''}{made['model']}")
    if others:
        raise MnemoError(
            f"{options.out} was made {' and '.join(others)}: resume with what it was made with, or name another --out"
        )


def _word(name: str, value: Any) -> str:
    option = f"--{name.replace('_', '-')}"
    if name == "bounded":
        option, value = "--no-bounded", not value
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {option}"
    return f"with {option} {value}"


def require_stages(checkpoint: Path, options: Tuning) -> None:
    """Refuse a curriculum that ends before the stage that a checkpoint has reached."""
    reached, stages = len(load_json(checkpoint / DECISIONS)["begins"]), options.curriculum
    if reached > len(stages):
        listed = " ".join(map(str, stages))
        raise MnemoError(f"{checkpoint} has reached stage {reached}; the stages are {listed}: give more with --stages")
