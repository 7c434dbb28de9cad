"""Train on contiguous streams with transformers' Trainer, carrying the memory from batch to batch.

    data = StreamData(ContiguousStream(ids, batch=8, segment=128, documents=starts_of_documents))
    StreamTrainer(model, TrainingArguments(..., max_steps=1000), train_dataset=data).train()

A sample of `StreamData` is one segment of all rows, so the Trainer's batch size must be 1. Rows that begin a document
are reset first. The plain Trainer works too, without streams: every sample then starts with an empty memory and is
split into segments inside the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, get_worker_info
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mnemo.data.streams import Batch, Stream, one_epoch
from mnemo.errors import MnemoError
from mnemo.files.tensor_file import load_tensors, write_tensors
from mnemo.hf.cache import MnemoCache
from mnemo.hf.modeling import IGNORED, MnemoForCausalLM
from mnemo.memory.state import leaves, tree_map
from mnemo.storage.weights import check_like

MEMORY_FILE = "memory.safetensors"
"""The memory at the step of a Trainer checkpoint."""


class StreamData(IterableDataset):
    """One epoch of a stream (`mnemo.ContiguousStream` or `mnemo.SentenceStream`), batch by batch."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch (called by the Trainer); the order of a stream may depend on it."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Tensor | None]]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise MnemoError("a stream has one order: set dataloader_num_workers to 0 or 1")
        cursor = self.stream.start()
        for _ in range(self._epoch):
            cursor = _next_epoch(self.stream, cursor)
        for batch in one_epoch(self.stream, cursor):
            yield model_inputs(batch)


def _next_epoch(stream: Stream, cursor: Any) -> Any:
    batch: Batch | None = None
    while True:
        batch, cursor = stream.read(cursor)
        if batch is None:
            return cursor


def model_inputs(batch: Batch) -> dict[str, Tensor | None]:
    """Return the arguments of the model's `forward` for a batch of the core."""
    tokens, targets = batch.tokens, batch.targets
    if tokens.shape != targets.shape:
        raise MnemoError("streams with context tokens are not supported here: use a memory instead")
    columns = torch.arange(tokens.shape[1])
    labels = torch.where(targets < 0, IGNORED, targets)
    return {
        "input_ids": tokens,
        "labels": labels,
        "shift_labels": labels,
        "attention_mask": None if batch.lengths is None else (columns < batch.lengths[:, None]).long(),
        "starts": batch.starts,
    }


class StreamTrainer(Trainer):
    """A Trainer for `StreamData`. Checkpoints include the memory, so that resuming is exact."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        callbacks = [_SaveMemory(self), *(kwargs.pop("callbacks", None) or [])]
        super().__init__(*args, data_collator=_only, callbacks=callbacks, **kwargs)
        for data in (self.train_dataset, self.eval_dataset):
            if data is not None and not isinstance(data, StreamData):
                raise MnemoError(f"StreamTrainer needs StreamData, not a {type(data).__name__}")
        if self.args.world_size > 1 or self.args.n_gpu > 1:
            raise MnemoError("StreamTrainer runs on one device: use `mnemo train` for several")
        if self.args.train_batch_size != 1 or self.args.eval_batch_size != 1:
            raise MnemoError("a sample of StreamData is a batch: set per_device_train_batch_size and eval to 1")
        self.args.remove_unused_columns = False
        self._memories: dict[bool, MnemoCache | None] = {}

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        outputs = model(
            **inputs,
            past_key_values=self._memories.get(model.training),
            use_cache=True,
            num_items_in_batch=num_items_in_batch,
            skip_logits=model.training or self.compute_metrics is None,
        )
        self._memories[model.training] = outputs.past_key_values
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate like transformers does: the mean over batches, in which a shorter last batch has equal weight."""
        self._memories.pop(False, None)
        return super().evaluation_loop(*args, **kwargs)

    def save_memory(self, folder: Path) -> None:
        cache = self._memories.get(True)
        if cache is not None:
            write_tensors(folder / MEMORY_FILE, dict(leaves(cache.plain_state())))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        path = Path(resume_from_checkpoint) / MEMORY_FILE
        tensors = load_tensors(path)
        core: MnemoForCausalLM = self.accelerator.unwrap_model(self.model)
        batch = len(next(iter(tensors.values()))) if tensors else 1
        self._memories[True] = MnemoCache(_state_of(core, tensors, batch, path))


def _state_of(model: MnemoForCausalLM, tensors: dict[str, Tensor], batch: int, path: Path) -> Any:
    form = model.start_state(batch)
    names = [name for name, _ in leaves(form)]
    if set(names) != set(tensors):
        raise MnemoError(f"{path} holds the memory of a different model")
    for name, leaf in leaves(form):
        check_like(tensors[name], leaf, name, path)
    found = iter(tensors[name].to(model.device) for name in names)
    return tree_map(lambda _: next(found), form)


def _only(batches: list[dict[str, Any]]) -> dict[str, Any]:
    (batch,) = batches
    return batch


class _SaveMemory(TrainerCallback):
    def __init__(self, trainer: StreamTrainer) -> None:
        self._trainer = trainer

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._trainer.save_memory(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}")
