"""Updates of a run's weights, as fast as its device allows: compiled, and recorded as one program where shapes stay.

    engine = Engine(model, optimizer, config)
    done = engine.update(window, states, lr)     # `done.states` are lent until the next update

Nothing here waits for the device. What cannot be recorded runs compiled, what cannot be compiled runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.memory.state import State
from mnemo.model import Model, attention_obstacle
from mnemo.recipes.recipe import TrainConfig
from mnemo.training.compiled import Compiled, against_compiling, is_adaptive
from mnemo.training.optimizers import set_learning_rate
from mnemo.training.precision import autocast, state_dtype
from mnemo.training.segment_window import Window
from mnemo.training.step import Accept, Forward, PartOfRows, Update, nothing_around, segment_loss, update
from mnemo.training.step_graph import CudaRecorder, RecordedUpdate, Recorder, takes_tensor_rates

COMPILED_DEVICES = ("cuda",)
"""Where compiling pays by itself: the CPU's own kernels are not part of a compiled graph."""


def _say_nothing(line: str) -> None:
    pass


def choose_forward(
    model: Model,
    config: TrainConfig,
    device: torch.device,
    *,
    uneven: str | None = None,
    note: Callable[[str], None] = _say_nothing,
    backend: str = "inductor",
) -> tuple[Forward, str | None]:
    """Forward pass and loss of a run, compiled or as they are written, and why they are not compiled."""
    recompute = config.recompute == "layer"
    if config.compile is False:
        reason = "compile is off"
    elif config.compile is not True and device.type not in COMPILED_DEVICES:
        reason = f"device {device.type}"
    else:
        reason = against_compiling(model) or uneven
    if reason is not None:
        return partial(segment_loss, recompute=recompute), reason
    length = config.context + config.segment
    by_layer = config.compile == "layers"
    return Compiled(model, length=length, recompute=recompute, note=note, backend=backend, by_layer=by_layer), None


class Engine:
    """`forward`: what `choose_forward` gave, perhaps with something around it; chosen here when left out.

    `scaler`: of fp16. `uneven`: why segments differ in length, where they do. `apart`: why updates cannot be recorded,
    where the caller knows a reason. `note` is told what goes wrong.
    """

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        *,
        forward: tuple[Forward, str | None] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        uneven: str | None = None,
        apart: str | None = None,
        note: Callable[[str], None] = _say_nothing,
        backend: str = "inductor",
        recorder: Recorder | None = None,
    ) -> None:
        self.model, self.optimizer, self.config, self.scaler = model, optimizer, config, scaler
        self.device = next(model.parameters()).device
        computed = state_dtype(config.precision) or next(model.parameters()).dtype
        self.not_fused = attention_obstacle(model.config, self.device, computed)
        self._note, self._uneven, self._apart = note, uneven, apart
        self._recorder = recorder or (CudaRecorder() if self.device.type == "cuda" else None)
        self._recorded: RecordedUpdate | None = None
        self._length = config.context + config.segment
        if forward is None:
            forward = choose_forward(model, config, self.device, uneven=uneven, note=note, backend=backend)
        self._forward, self.not_compiled = forward
        self.not_recorded = self._against_recording()

    def describe(self) -> str:
        """How updates run, and why not faster."""
        fused = (
            ""
            if self.device.type != "cuda"
            else "fused attention, "
            if self.not_fused is None
            else f"plain attention ({self.not_fused}), "
        )
        return fused + self._how()

    def _how(self) -> str:
        if self.not_compiled is not None and self.not_compiled == self.not_recorded:
            return f"not compiled, no CUDA graph ({self.not_compiled})"
        how = "layers compiled" if self.config.compile == "layers" else "compiled"
        compiled = how if self.not_compiled is None else f"not compiled ({self.not_compiled})"
        recorded = "one CUDA graph" if self.not_recorded is None else f"no CUDA graph ({self.not_recorded})"
        return f"{compiled}, {recorded}"

    def _against_recording(self) -> str | None:
        """In the order in which a user would want to know."""
        config = self.config
        dropout_again = config.bptt > 0 and config.bptt_memory != "plain"
        reasons = {
            f"device {self.device.type}": self._recorder is None,
            "cuda_graph is off": not config.cuda_graph,
            self._apart or "": self._apart is not None,
            self._uneven or "": self._uneven is not None,
            against_compiling(self.model) or "": against_compiling(self.model) is not None,
            "an adaptive softmax looks at its targets": is_adaptive(self.model),
            "fp16 skips updates that overflow": self.scaler is not None,
            f"bptt_memory {config.bptt_memory} draws dropout again": dropout_again,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def update(
        self,
        window: Window,
        states: Sequence[State],
        lr: float,
        *,
        part_of_rows: PartOfRows = nothing_around,
        idle: Sequence[Tensor] = (),
        accept: Accept | None = None,
    ) -> Update:
        """One update from a window whose batches may still be in the host's memory.

        With any of the last three, as in `mnemo.training.step.update`, `apart` must say why nothing is recorded.
        """
        self.prepare(window, states)
        set_learning_rate(self.optimizer, lr)
        if self.device.type == "cuda":
            window = window.map(pinned)
        if self._recorded is not None and self._recorded.fits(window):
            return self._recorded(window, states)
        return update(
            self.model,
            self.optimizer,
            window.map(partial(to_device, device=self.device)),
            states,
            clip=self.config.optimizer.clip,
            scaler=self.scaler,
            autocast=autocast(self.config.precision, self.device),
            forward=self._forward,
            part_of_rows=part_of_rows,
            idle=idle,
            accept=accept,
        )

    def needs_preparing(self, window: Window) -> bool:
        """Whether the next update with this window compiles and records first, which takes a while."""
        if self._recorded is not None or self.not_recorded is not None:
            return False
        again = self.config.bptt if self.config.bptt_window == "sliding" else 0
        nominal = all(batch.tokens.shape[1] == self._length and batch.lengths is None for batch in window.batches)
        return nominal and len(window.batches) == 1 + self.config.bptt and window.num_again == again

    def prepare(self, window: Window, states: Sequence[State]) -> None:
        """Record the update of the run's nominal windows, if this is one; nothing that training depends on changes."""
        if not self.needs_preparing(window) or self._recorder is None:
            return
        try:
            self._recorded = RecordedUpdate(
                self.model,
                self.optimizer,
                window,
                states,
                clip=self.config.optimizer.clip,
                autocast=autocast(self.config.precision, self.device),
                forward=self._forward,
                recorder=self._recorder,
            )
        except RuntimeError as error:
            self.not_recorded = str(error).strip().partition("\n")[0]
            self._note(f"no CUDA graph, going on without it, slower: {self.not_recorded}")
        if self._recorded is not None and not takes_tensor_rates(self.optimizer):
            self._note(f"{type(self.optimizer).__name__} steps outside of the CUDA graph")


def pinned(batch: Batch) -> Batch:
    """In memory that a device reads by itself, so that nobody waits for what the device is still doing."""
    return Batch(*(part if part is None or part.is_cuda else part.pin_memory() for part in batch))  # type: ignore[arg-type]


def to_device(batch: Batch, device: torch.device) -> Batch:
    return Batch(*(None if part is None else part.to(device, non_blocking=True) for part in batch))  # type: ignore[arg-type]
