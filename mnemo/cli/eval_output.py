"""What `mnemo eval` saves, plots and prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mnemo.cli import console, opened_run
from mnemo.cli.run_arguments import BITS_PER_SYMBOL
from mnemo.evaluation.length_search import LengthSearch
from mnemo.evaluation.score import Score
from mnemo.evaluation.settings import training_remark
from mnemo.report.charts import LineChart, Series, draw_lines
from mnemo.report.files import write_text
from mnemo.report.svg import for_page, save_picture, slugify, standalone
from mnemo.session.text_run import OpenedRun
from mnemo.units import bits, perplexity


@dataclass(frozen=True, kw_only=True)
class LossPlot:
    """A curve of losses in nats; it is drawn in bits per symbol or perplexity."""

    x: Sequence[int]
    losses: Sequence[float]
    x_label: str
    title: str
    mark: int | None = None
    """A length to mark on a logarithmic axis of lengths; None: a plain axis of positions."""
    mark_label: str = ""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One result of `mnemo eval`."""

    kind: str
    lengths: str
    """End of the file's name: the lengths that were scored."""
    content: dict[str, Any]
    """Saved with the settings, as JSON."""
    scores: Sequence[Score]
    plot: LossPlot | None = None
    by_position: bool = False
    """Print the losses by position as well."""
    remark: str = ""


def length_remark(found: LengthSearch, in_bits: bool) -> str:
    def shown(score: Score) -> str:
        extra = f" ({score.bits_per_token:.4f} bpc)" if in_bits else ""
        return f"ppl {score.perplexity:.3f}{extra}"

    return (
        f"at the training length {found.initial.attention}: {shown(found.initial)}; "
        f"best: {shown(found.best)} at {found.best.attention}; "
        f"shortest attention within {found.tolerance:.1%} of it: {found.shortest.attention}"
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationOutput:
    opened: OpenedRun
    split: str
    settings: dict[str, Any]
    """Saved in every result."""
    label: str
    """The settings as part of the file's name, so that results of other settings keep their files."""
    json: bool
    """Print JSON instead of tables."""

    @property
    def in_bits(self) -> bool:
        return self.opened.unit in BITS_PER_SYMBOL

    def finish(self, found: Evaluated) -> None:
        """Save the result and its plot, then print it."""
        run, folder = self.opened.run, opened_run.result_folder(self.opened.run)
        content = self.settings | {"kind": found.kind} | found.content
        files, remarks = list[Path](), [found.remark]
        if folder is not None:
            name = f"{found.kind}-{self.label}-{found.lengths}"
            files.append(opened_run.save_result(folder, name, run, content))
            if found.plot is not None and find_spec("matplotlib") is None:
                remarks.append("no picture: matplotlib is not installed")
            elif found.plot is not None:
                files += save_chart(self._chart(found.plot), folder / name)
        if self.json:
            console.print_json(content | {"step": run.step, "files": [str(path) for path in files]})
            return
        self._print(found)
        for line in filter(None, (*remarks, *(f"saved {path}" for path in files))):
            print(line)

    def _print(self, found: Evaluated) -> None:
        symbol = "bpc" if self.in_bits else "bits"
        with_temperature = any(score.temperature != 1 for score in found.scores)
        by_word = self.opened.unit != "word" and any(score.spells for score in found.scores)
        rows = [_row(score, symbol, words=by_word, temperature=with_temperature) for score in found.scores]
        _table([list(row.values()) for row in rows], list(rows[0]))
        for line in filter(None, (self._lengths_remark(found), self._start_remark())):
            print(line)
        if found.by_position:
            losses = found.scores[0].by_position
            shown = [[str(at), f"{self._in_unit(losses[at - 1]):.4f}"] for at in _few(len(losses))]
            print()
            _table(shown, ["position", symbol if self.in_bits else "ppl"])

    def _lengths_remark(self, found: Evaluated) -> str:
        """Empty for several lengths, whose table shows them."""
        memory, *others = {score.memory for score in found.scores}
        return "" if others else training_remark(self.opened.run.model.config, memory)

    def _start_remark(self) -> str:
        zeros = self.settings["starts_from"] == "zeros"
        return "memory starts full of zeros, which are attended to" if zeros else ""

    def _chart(self, plot: LossPlot) -> LineChart:
        run, by_length = self.opened.run, plot.mark is not None
        title = f"{run.path.name}: {plot.title}, {run.corpus.get('name')} {self.split}"
        points = np.array(list(zip(plot.x, map(self._in_unit, plot.losses), strict=True)), dtype=float)
        return LineChart(
            [Series(title, points, 0)],
            plot.x_label,
            f"bits per {self.opened.unit}" if self.in_bits else "perplexity",
            x_kind="doubling" if by_length else "linear",
            mark=None if plot.mark is None else (plot.mark_label, float(plot.mark)),
            markers=by_length,
        )

    def _in_unit(self, nats: float) -> float:
        return bits(nats) if self.in_bits else perplexity(nats)


def save_chart(chart: LineChart, path: Path) -> list[Path]:
    """Write the chart of one series as `path` with the suffixes .png and .svg."""
    png, svg = (path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg"))
    drawing, title = draw_lines(chart), chart.series[0].label
    description = f"{chart.y_label} against {chart.x_label}."
    write_text(svg, standalone(for_page(drawing, slugify(path.name), title, description)))
    save_picture(drawing, png, "png")
    return [png, svg]


def _row(score: Score, symbol: str, words: bool, temperature: bool) -> dict[str, str]:
    row = {
        "split": score.split,
        "memory": f"{score.memory:,}",
        "segment": f"{score.segment:,}" + (f"+{score.context}" if score.context else ""),
        "tokens": f"{score.tokens:,}",
        symbol: f"{score.bits_per_token:.4f}",
        "ppl": f"{score.perplexity:.4g}" if score.perplexity >= 1e6 else f"{score.perplexity:.3f}",
    }
    if temperature:
        row["temperature"] = f"{score.temperature:g}"
    if words:
        row["word ppl"] = f"{score.word_perplexity:,.4g}" if score.spells else "-"
    return row | {"tok/s": f"{score.tokens / score.seconds:,.0f}" if score.seconds else "-"}


def _table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> None:
    """Print a table whose columns and headers are all flush right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    first, *others = ([cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in (headers, *rows))
    console.table(others, first)


def _few(count: int) -> list[int]:
    """The first position, which is 1, its doublings, and the last."""
    return sorted({*(2**i for i in range(count.bit_length())), count})
