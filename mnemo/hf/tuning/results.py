"""The results of tuning as JSON and as a figure: accuracy by number of segments."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import transformers

from mnemo.files import atomic
from mnemo.files.json_file import load_object
from mnemo.hf.tuning.accuracy import Accuracy
from mnemo.hf.tuning.curriculum import CurriculumState
from mnemo.hf.tuning.trainer import Say
from mnemo.recipes.tuning import Tuning

if TYPE_CHECKING:
    from mnemo.report.plots import Line

RESULTS = "results.json"
FIGURE = "accuracy"


class ResultsFile:
    """results.json, written again after every result, so that an interrupted evaluation loses nothing.

    Results of other lengths that an earlier call measured after the same step stay in it.
    """

    def __init__(self, options: Tuning, curriculum: CurriculumState, step: int, say: Say) -> None:
        self.path, self.say = options.out / RESULTS, say
        self.content: dict[str, Any] = {
            "options": {name: _plain(value) for name, value in asdict(options).items()},
            "machine": machine(),
            "step": step,
            "curriculum": curriculum.as_dict(),
            "book_loss": {},
            "results": [],
        }
        if options.resume and self.path.is_file():
            earlier = load_object(self.path)
            if earlier.get("step") == step:
                self.content |= {name: earlier[name] for name in ("book_loss", "results")}

    def add(self, result: Accuracy) -> None:
        """Write and print the accuracy at one length."""
        new = result.as_dict()
        place = (new["segments"], new["tokens"])
        others = [one for one in self.content["results"] if (one["segments"], one["tokens"]) != place]
        self.content["results"] = sorted([*others, new], key=lambda one: one["length"])
        self.write()
        low, high = result.interval
        line = f"{result.segments:>5} x {result.tokens}  {result.share:.3f} [{low:.3f}, {high:.3f}]"
        self.say(f"{line}  memory cut {result.share_cut:.3f}  {result.seconds or 0:,.1f} s")

    def add_book_loss(self, when: str, losses: dict[str, float]) -> None:
        self.content["book_loss"] = self.content["book_loss"] | {when: losses}
        self.write()
        text = "  ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
        self.say(f"loss on books {when} training: {text}")

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.new_file(self.path) as partial:
            partial.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")

    def draw(self) -> None:
        """Draw the accuracies beside the file."""
        if importlib.util.find_spec("matplotlib") is None:
            self.say("no figure: matplotlib is not installed")
        else:
            self.say(f"figure: {draw_results(self.path)}")


def machine() -> dict[str, str]:
    """Return the device and the versions of the libraries that measurements depend on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": device, "torch": torch.__version__, "transformers": transformers.__version__}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def draw_results(path: Path, target: Path | None = None) -> Path:
    """Draw the figure of a file results.json, by default beside it."""
    from mnemo.report.files import write_text
    from mnemo.report.plots import line_figure
    from mnemo.report.svg import standalone

    found = load_object(path)
    figure = line_figure(
        FIGURE,
        f"BABILong {found['options']['task']}: accuracy by length",
        "Right answers and 95% intervals (Wilson). Memory cut: the last segment is read without the memory.",
        [accuracy_line("with memory", found["results"]), accuracy_line("memory cut", found["results"], "_cut")],
        x_label="tokens",
        y_label="right answers, %",
        x_kind="doubling",
        y_max=100,
    )
    target = path.with_name(f"{FIGURE}.svg") if target is None else target
    write_text(target, standalone(figure.svg))
    return target


def accuracy_line(label: str, results: Sequence[dict[str, Any]], kind: Literal["", "_cut"] = "") -> Line:
    """Return the accuracies in percent by length, with their intervals; "_cut": those with the memory cut."""
    from mnemo.report.plots import Line

    points = [(result["length"], 100 * result[f"accuracy{kind}"]) for result in results]
    low, high = zip(*(result[f"interval{kind}"] for result in results), strict=True)
    return Line(label, points, [100 * edge for edge in low], [100 * edge for edge in high])
