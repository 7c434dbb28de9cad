"""Updates of a run's weights, as fast as its device allows: compiled, and recorded as a CUDA graph.

    engine = Engine(model, optimizer, config)
    done = engine.update(inputs, states, lr)     # the next update may overwrite `done.states`

Nothing here waits for the device. An update that cannot be recorded runs compiled; a loss that cannot be compiled runs
as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.errors import one_line
from mnemo.inference.cuda_graph import CudaRecorder, Recorder
from mnemo.memory.state import State
from mnemo.model import Model, attention_obstacle, rows_obstacle
from mnemo.recipes.recipe import TrainConfig
from mnemo.start import started
from mnemo.training.compiled_loss import CompiledLoss, against_compiling, is_adaptive, with_fixed_bins
from mnemo.training.half_weights import HalfWeights, may_keep_gradients, product_maps
from mnemo.training.mean_norm import MeanNorm
from mnemo.training.optimizers import set_learning_rate
from mnemo.training.precision import autocast, state_dtype
from mnemo.training.recorded_update import WARMUP_UPDATES, RecordedUpdate, takes_tensor_rates
from mnemo.training.update_input import UpdateInput
from mnemo.training.weight_update import (
    Accept,
    AroundPart,
    LossTerms,
    SegmentLoss,
    Update,
    nothing_around,
    segment_loss,
    update,
)

COMPILED_DEVICES = ("cuda",)
"""Devices on which compiling is the default: on a CPU, Mnemo's own kernels are not part of a compiled graph."""


def _no_note(line: str) -> None:
    pass


def choose_forward(
    model: Model,
    config: TrainConfig,
    device: torch.device,
    *,
    uneven: str | None = None,
    note: Callable[[str], None] = _no_note,
    backend: str = "inductor",
) -> tuple[SegmentLoss, str | None]:
    """Return the loss function of a run, compiled or not, and the reason if it is not compiled."""
    recompute = config.recompute == "layer"
    if config.compile is False:
        reason = "compile is off"
    elif config.compile is not True and device.type not in COMPILED_DEVICES:
        reason = f"device {device.type}"
    else:
        reason = against_compiling(model) or uneven
    if reason is not None:
        return partial(segment_loss, recompute=recompute, z_loss=config.z_loss), reason
    length = config.context + config.segment
    by_layer = compiles_layers(model, config)
    options: dict[str, Any] = {"backend": backend, "by_layer": by_layer, "z_loss": config.z_loss}
    return CompiledLoss(model, length=length, recompute=recompute, note=note, **options), None


def compiles_layers(model: Model, config: TrainConfig) -> bool:
    """Whether layers are compiled one for all, and not all of them as one graph.

    That is the default where layers are nearly all of a step's work: it compiles many times faster.
    """
    memories = model.config.memory.memories(model.config.num_layers)
    whole = model.config.tokens is None and all(memory.traits.key_value_cache for memory in memories)
    return config.compile == "layers" or (config.compile is None and whole)


class Engine:
    """Updates the weights of one model.

    `forward`: what `choose_forward` returned, possibly wrapped; None to choose here. `scaler`: for fp16.
    `mean_norm`: with `clip_mean`, the running mean of gradient norms.
    `uneven`: the reason why segments differ in length, if they do. `unrecordable`: the caller's reason why updates
    cannot be recorded, if any. `note` is called with messages about failures.
    """

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        *,
        forward: tuple[SegmentLoss, str | None] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        uneven: str | None = None,
        unrecordable: str | None = None,
        note: Callable[[str], None] = _no_note,
        backend: str = "inductor",
        recorder: Recorder | None = None,
        mean_norm: MeanNorm | None = None,
    ) -> None:
        self.model, self.optimizer, self.config, self.scaler = model, optimizer, config, scaler
        self._mean_norm = mean_norm
        self.device = next(model.parameters()).device
        computed = state_dtype(config.precision) or next(model.parameters()).dtype
        self.not_fused = attention_obstacle(model.config, self.device, computed)
        self.plain_rows = rows_obstacle(model.config, self.device, computed)
        self._note, self._uneven, self._unrecordable = note, uneven, unrecordable
        if recorder is None and self.device.type == "cuda":
            recorder = CudaRecorder(self.device, warmup_calls=WARMUP_UPDATES)
        self._recorder = recorder
        self._recorded: RecordedUpdate | None = None
        self._backend, self._noted_rare = backend, False
        self._length = config.context + config.segment
        if forward is None:
            forward = choose_forward(model, config, self.device, uneven=uneven, note=note, backend=backend)
        self._forward, self.not_compiled = forward
        self.not_recorded = self._against_recording()

    def describe(self) -> str:
        """One line about how updates run, with reasons for slower ways."""
        if self.device.type != "cuda":
            return self._how()
        fused = "fused attention" if self.not_fused is None else f"plain attention ({self.not_fused})"
        plain_rows = "" if self.plain_rows is None else f", plain norms and activations ({self.plain_rows})"
        return f"{fused}{plain_rows}, {self._how()}"

    def _how(self) -> str:
        if self.not_compiled is not None and self.not_compiled == self.not_recorded:
            return f"not compiled, no CUDA graph ({self.not_compiled})"
        how = "layers compiled" if compiles_layers(self.model, self.config) else "compiled"
        compiled = how if self.not_compiled is None else f"not compiled ({self.not_compiled})"
        recorded = "one CUDA graph" if self.not_recorded is None else f"no CUDA graph ({self.not_recorded})"
        return f"{compiled}, {recorded}"

    def _against_recording(self) -> str | None:
        """The first reason not to record updates, most useful ones first; None if there is none."""
        config = self.config
        dropout_again = config.bptt > 0 and config.bptt_memory != "plain"
        against = against_compiling(self.model)
        reasons = [
            (f"device {self.device.type}", self._recorder is None),
            ("cuda_graph is off", not config.cuda_graph),
            (self._unrecordable, self._unrecordable is not None),
            (self._uneven, self._uneven is not None),
            (against, against is not None),
            ("fp16 skips updates that overflow", self.scaler is not None),
            (f"bptt_memory {config.bptt_memory} draws dropout again", dropout_again),
        ]
        return next((reason for reason, holds in reasons if holds), None)

    def update(
        self,
        inputs: UpdateInput,
        states: Sequence[State],
        lr: float,
        *,
        around_part: AroundPart = nothing_around,
        unused: Sequence[Tensor] = (),
        accept: Accept | None = None,
    ) -> Update:
        """Update the weights once; batches may still be in the host's memory.

        The last three arguments are those of `mnemo.training.weight_update.update`; with any of them, `unrecordable`
        must be set.
        """
        self.prepare(inputs, states)
        started()
        set_learning_rate(self.optimizer, lr)
        if self.device.type == "cuda":
            inputs = inputs.map(pinned)
        if self._recorded is not None and self._recorded.fits(inputs) and self._bins_fit(inputs, len(states)):
            return self._recorded(inputs, states)
        return update(
            self.model,
            self.optimizer,
            inputs.map(partial(to_device, device=self.device)),
            states,
            clip=self.config.optimizer.clip,
            scaler=self.scaler,
            autocast=autocast(self.config.precision, self.device),
            forward=self._forward_beside_recording(),
            around_part=around_part,
            unused=unused,
            accept=accept,
            mean_norm=self._mean_norm,
        )

    def _half_weights(self, inputs: UpdateInput, states: Sequence[State]) -> HalfWeights | None:
        """Matrices in half precision for recorded updates; parts of a batch add up their gradients in single.

        None also for models without transformer layers, which have no matrices to cast here.
        """
        dtype = state_dtype(self.config.precision)
        if dtype is None or len(states) > 1:
            return None
        model = self._model_to_record()
        maps = product_maps(model)
        return HalfWeights(model, dtype) if maps and may_keep_gradients(maps, len(inputs.batches)) else None

    def _model_to_record(self) -> Model:
        """The model; the bins of an adaptive softmax have fixed sizes, so that all of its loss is compiled."""
        return with_fixed_bins(self.model) if is_adaptive(self.model) else self.model

    def _forward_to_record(self, half: HalfWeights | None) -> SegmentLoss:
        model = self._model_to_record() if half is None else half.model
        if model is self.model:
            return self._forward
        loss, _ = choose_forward(
            model, self.config, self.device, uneven=self._uneven, note=self._note, backend=self._backend
        )
        return partial(_loss_of, model, loss, half)

    def _forward_beside_recording(self) -> SegmentLoss:
        """The loss function of updates that do not fit the recording.

        With an adaptive softmax they are rare, so that compiling another graph for them would take longer.
        """
        if self._recorded is None or not is_adaptive(self.model):
            return self._forward
        return partial(segment_loss, recompute=self.config.recompute == "layer", z_loss=self.config.z_loss)

    def _bins_fit(self, inputs: UpdateInput, parts: int) -> bool:
        """Whether the targets fit the fixed bins of an adaptive softmax; waits for the device if they are there."""
        if not is_adaptive(self.model):
            return True
        targets = (part for batch in inputs.batches for part in batch.targets.tensor_split(parts))
        fit = all(self.model.softmax.bins_fit(part.flatten()) for part in targets)
        if not fit and not self._noted_rare:
            self._noted_rare = True
            self._note(
                "an update has more rare tokens than Zipf's law predicts: such updates run without the CUDA graph"
            )
        return fit

    def needs_preparing(self, inputs: UpdateInput) -> bool:
        """Whether the next update with these inputs compiles and records first, which takes a while."""
        if self._recorded is not None or self.not_recorded is not None:
            return False
        again = self.config.bptt if self.config.bptt_window == "sliding" else 0
        nominal = all(batch.tokens.shape[1] == self._length and batch.lengths is None for batch in inputs.batches)
        return nominal and len(inputs.batches) == 1 + self.config.bptt and inputs.num_again == again

    def forget_recording(self) -> None:
        """Record the next update anew: the recorded one changes tensors that the optimizer no longer has."""
        self._recorded = None

    def run_without_graph(self) -> bool:
        """Compute the recorded update without its CUDA graph, and drop the recording; False if there is none."""
        recorded, self._recorded = self._recorded, None
        if recorded is not None:
            recorded.run_without_graph()
        return recorded is not None

    def prepare(self, inputs: UpdateInput, states: Sequence[State]) -> None:
        """Record the update if inputs have the run's usual shape; nothing that training depends on changes."""
        if not self.needs_preparing(inputs) or self._recorder is None:
            return
        try:
            half = self._half_weights(inputs, states)
            self._recorded = RecordedUpdate(
                self.model,
                self.optimizer,
                inputs,
                states,
                clip=self.config.optimizer.clip,
                autocast=autocast(self.config.precision, self.device),
                forward=self._forward_to_record(half),
                recorder=self._recorder,
                mean_norm=self._mean_norm,
                half=half,
            )
        except RuntimeError as error:
            self.not_recorded = one_line(error)
            self._note(f"continuing without a CUDA graph, slower: {self.not_recorded}")
        if self._recorded is not None and not takes_tensor_rates(self.optimizer):
            self._note(f"{type(self.optimizer).__name__} steps outside of the CUDA graph")


def _loss_of(
    model: Model,
    loss: SegmentLoss,
    half: HalfWeights | None,
    given: Model,
    batch: Batch,
    state: State,
    scored: bool = True,
) -> LossTerms:
    """The loss function of one model, whose weights are those of the given one."""
    if half is not None:
        half.begin_segment()
    return loss(model, batch, state, scored)


def pinned(batch: Batch) -> Batch:
    """Move a batch to pinned memory, from which the device copies without making Python wait."""
    return Batch(*(part if part is None or part.is_cuda else part.pin_memory() for part in batch))  # type: ignore[arg-type]


def to_device(batch: Batch, device: torch.device) -> Batch:
    return Batch(*(None if part is None else part.to(device, non_blocking=True) for part in batch))  # type: ignore[arg-type]
