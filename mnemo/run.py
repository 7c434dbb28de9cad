"""A trained run for Python and notebooks: write text, score it, read files into a memory, draw the curves.

run = open_run("mine")               # prints what it is
run.generate("Once upon a time")     # text
run.score("Once upon a time")        # bits per byte, perplexity
memory = run.read("book.txt")        # a session: .generate(200), .save("book.memory"), .fork()
run.plot()                           # learning curves
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from mnemo.cost.parameters import count_parameters
from mnemo.display import Shown, Summary
from mnemo.inference.narrow_weights import with_narrow_weights
from mnemo.inference.sampling_options import Sampling
from mnemo.inference.weight_formats import WeightFormat
from mnemo.progress import ShowProgress
from mnemo.report.loss_units import loss_unit
from mnemo.report.number_text import amount, number
from mnemo.report.run_curves import RunCurves
from mnemo.report.run_summary import plan_words
from mnemo.report.runs import read_run
from mnemo.session.session import Session
from mnemo.session.text_loss import TextLoss
from mnemo.session.text_run import OpenedRun, with_tokenizer
from mnemo.storage import run_folder
from mnemo.storage.run_folder import LoadedRun
from mnemo.storage.run_header import Which, default_run
from mnemo.storage.shipped import is_shipped, load_card

TOKENS = 256


@dataclass(frozen=True, repr=False)
class Run(Shown, LoadedRun):
    """A trained model with its tokenizer and its curves."""

    @cached_property
    def text(self) -> OpenedRun:
        """The model with its tokenizer; an error if it was not trained on text."""
        return with_tokenizer(self)

    def session(
        self,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        memory_length: int | None = None,
    ) -> Session:
        """A text in progress that is empty so far; `memory_length`: slots of the long-range layers."""
        return Session(self.text, sampling=Sampling(temperature, top_k, top_p), seed=seed, memory_length=memory_length)

    def generate(
        self,
        prompt: str = "",
        num_tokens: int = TOKENS,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        memory_length: int | None = None,
    ) -> str:
        """The prompt followed by its continuation of `num_tokens`; without a prompt, the start of a document."""
        session = self.session(
            temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, memory_length=memory_length
        )
        if prompt:
            session.read(prompt)
        return prompt + session.generate(num_tokens)

    def score(self, text: str | bytes, *, memory_length: int | None = None) -> TextLoss:
        """The loss of a text that is read from its beginning."""
        return self.session(memory_length=memory_length).read(text)

    def read(
        self, path: str | Path, *, memory_length: int | None = None, progress: ShowProgress | None = None
    ) -> Session:
        """Read a text file, and return the session after it: what the model continues from."""
        session = self.session(memory_length=memory_length)
        session.read_file(path, progress)
        return session

    def plot(self) -> RunCurves:
        """The learning curves; `.figure` is the Matplotlib figure, `.save("curves.png")` writes a file."""
        return RunCurves(read_run(self.path, self.path.name))

    def summary(self) -> Summary:
        config, unit = self.recipe.model, loss_unit(self.corpus.get("unit"))
        best = read_run(self.path, self.path.name).best
        facts = [
            ("folder", str(self.path)),
            (
                "model",
                f"{config.num_layers} layers of {config.dim}, {amount(count_parameters(self.model).total)} weights",
            ),
            ("memory", plan_words(config)),
            ("segment", f"{self.recipe.train.segment:,} tokens"),
            ("trained on", f"{self.corpus.get('name')} ({self.corpus.get('unit')}s)"),
            ("device", str(self.model.device)),
        ]
        if best is not None:
            facts.append(("best validation", f"{number(unit.of(best.loss))} {unit.short} at step {best.step:,}"))
        if is_shipped(self.path):
            card = load_card(self.path)
            facts += [("data", card["data"]), ("licence", card["licence"]), ("score", card["score"])]
        return Summary(f"run {self.path.name}, step {self.step:,}", facts)


def open_run(
    run: str | Path | None = None,
    which: Which = "best",
    device: str | torch.device = "auto",
    weights: WeightFormat = "fp32",
) -> Run:
    """Load a trained model as it was evaluated: with averaged weights if the run has begun to average them.

    `run`: a folder, a name under `runs`, or a model that comes with the package; None: the run that was trained last,
        or that model if there is none
    `which`: the checkpoint with the best validation loss, or the last one; before the first evaluation the last one
        counts as the best
    `device`: "cpu", "cuda", or "auto": a GPU if there is one
    `weights`: on a CPU, "bf16" or "int8" rounds the weights of the layers, which generates faster
    """
    loaded = run_folder.open_run(default_run() if run is None else run, which, device)
    model = with_narrow_weights(loaded.model, weights)
    return Run(loaded.path, loaded.recipe, model, loaded.step, loaded.corpus, loaded.start, loaded.decoding)
