"""Measure where memory helps on a text, and write the page of `mnemo analyse`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mnemo import analysis
from mnemo.analysis import Alpha, AlphaObserver, AttentionByDistance, DistanceObserver
from mnemo.cli import console, opened_run
from mnemo.cli.analyse import Args
from mnemo.cli.console import STDIN
from mnemo.cli.run_arguments import made_folder
from mnemo.cli.second_segment import require_two_segments
from mnemo.errors import MnemoError
from mnemo.memory.state import State
from mnemo.model import Model
from mnemo.model.memory_limits import require_state_room
from mnemo.report.analysis_page import TextAnalysis, write_analysis
from mnemo.report.run_summary import plan_words
from mnemo.report.shaded_text import passages
from mnemo.report.svg import slugify
from mnemo.session.text_run import OpenedRun
from mnemo.storage.shipped import is_shipped
from mnemo.units import bits


class Text(NamedTuple):
    name: str
    ids: Tensor
    """The token ids that are analysed."""
    available: int
    """Number of tokens of the whole text."""


def analyse(args: Args) -> int:
    opened = opened_run.open_with_tokenizer(args)
    name, whole = load_text(opened, args.text)
    ids = whole[: args.limit] if args.limit else whole
    segment = args.segment or opened.run.recipe.train.segment
    require_two_segments(len(ids), segment)
    home = Path() if is_shipped(opened.run.path) else opened.run.path
    folder = made_folder(args.out or home / "analyses" / slugify(name.partition(".")[0]))
    found = _analyse(args, opened, Text(name, ids, len(whole)), segment)
    page = write_analysis(found, folder)
    answer = _answer(found, page) | {"tokens_in_text": len(whole)}
    console.print_json(answer) if args.json else _print(answer)
    return 0


def load_text(opened: OpenedRun, text: str | None) -> tuple[str, Tensor]:
    """Name and token ids of the text; if unset, of the validation split that the run was trained with."""
    if text is not None:
        return "stdin" if text == STDIN else Path(text).name, opened_run.encode_text(opened.tokenizer, text)
    corpus = opened_run.corpus_of(opened.run)
    ids = torch.from_numpy(corpus.split("valid").ids.astype(np.int64))
    return f"{corpus.name}, valid", ids


def _analyse(args: Args, opened: OpenedRun, text: Text, segment: int) -> TextAnalysis:
    model = opened.run.model
    device, ids = model.device, text.ids
    require_state_room(model.config, device, batch=1, segment=segment, lengths=args.memory_length, cached=True)
    state = opened.run.first_state(1, args.memory_length, cached=True)
    gain = analysis.gain_from_memory(model, ids, segment=segment, state=state, progress=console.progress)
    opened_run.require_finite(float(gain.with_memory.sum()))
    state = opened.run.first_state(1, args.memory_length, cached=True)
    attention, alpha, left_out = _watch(model, ids, segment, state)
    if not analysis.keeps_memory(model, args.memory_length):
        left_out.append("the gain from memory: this model keeps nothing from one segment to the next")
    return TextAnalysis(
        run=opened.run.path.name,
        text=text.name,
        ids=ids.tolist(),
        pieces=_pieces(opened, ids),
        unit=opened.unit,
        facts=_facts(args, opened, segment, len(ids), text.available),
        gain=gain,
        attention=attention,
        alpha=alpha,
        left_out=left_out,
    )


def _watch(
    model: Model, ids: Tensor, segment: int, state: State
) -> tuple[AttentionByDistance | None, Alpha | None, list[str]]:
    """Attention, alpha, and the reasons for what is missing."""
    try:
        layers = analysis.attending_layers(model)
    except MnemoError as error:
        return None, None, [f"attention: {error}"]
    distances, alphas = DistanceObserver(layers), AlphaObserver(layers)
    wanted = analysis.has_alpha(model)
    notes = [alphas] if wanted else []
    analysis.observe(
        model, ids, [distances], segment=segment, state=state, diagnostics=notes, progress=console.progress
    )
    found = alphas.result()
    never = ["alpha: the text is too short to fill the memory"] if wanted and found is None else []
    return distances.result(), found, never


def _pieces(opened: OpenedRun, ids: Tensor) -> list[str]:
    decoder = opened.tokenizer.decoder()
    pieces = [decoder.feed([token]) for token in ids.tolist()]
    pieces[-1] += decoder.finish()
    return pieces


def _facts(args: Args, opened: OpenedRun, segment: int, read: int, available: int) -> list[tuple[str, str]]:
    run, model = opened.run, opened.run.model
    lengths = model.memory_lengths(run.first_state(1, args.memory_length))
    facts = [
        ("Run", str(run.path)),
        ("Checkpoint", f"step {run.step:,} ({args.which})"),
        ("Memory as trained", plan_words(model.config)),
        ("Memory slots here", f"{max(lengths):,} at most"),
        ("Segment", f"{segment:,} tokens"),
        ("Text", f"{read:,} of {available:,} tokens"),
        ("Device", str(model.device)),
    ]
    return facts if any(lengths) else [fact for fact in facts if fact[0] != "Memory slots here"]


def _answer(found: TextAnalysis, page: Path) -> dict[str, Any]:
    gain = found.gain
    answer: dict[str, Any] = {
        "page": str(page),
        "tokens": len(found.ids),
        "segment": gain.segment,
        "loss": float(gain.with_memory.mean()),
        "loss_without_memory": float(gain.without.mean()),
        "gain": float(gain.gain.mean()),
        "gain_by_position": gain.by_position().tolist(),
        "passages": [
            {**passage._asdict(), "text": "".join(found.pieces[passage.begin : passage.end])}
            for passage in passages(gain, found.unit)
        ],
        "attention": None,
        "alpha": None,
        "left_out": list(found.left_out),
    }
    if found.attention is not None:
        labels, shares = found.attention.buckets()
        answer["attention"] = {
            "layers": list(found.attention.layers),
            "distances": list(labels),
            "shares": shares.tolist(),
            "memory_tokens": found.attention.memory_tokens.mean(1).tolist(),
            "wide_heads": [head._asdict() for head in found.attention.wide_heads()],
        }
    if found.alpha is not None:
        answer["alpha"] = {"layers": list(found.alpha.layers), "mean": found.alpha.mean.tolist()}
    return answer


def compared(kept: float, lost: float) -> str:
    """Bits per token with and without memory, and the difference as a saving or a cost."""
    effect = f"saves {lost - kept:.4f}" if lost >= kept else f"costs {kept - lost:.4f}"
    return f"{kept:.4f} bits each with memory, {lost:.4f} without: memory {effect}"


def _print(answer: dict[str, Any]) -> None:
    for line in answer["left_out"]:
        print(f"mnemo: left out: {line}", file=sys.stderr)
    available = answer["tokens_in_text"]
    if answer["tokens"] < available:
        note = f"mnemo: read the first {answer['tokens']:,} of {available:,} tokens; --limit 0 reads all"
        print(note, file=sys.stderr)
    kept, lost = bits(answer["loss"]), bits(answer["loss_without_memory"])
    print(f"{answer['tokens']:,} tokens: {compared(kept, lost)}")
    for passage in answer["passages"][:3]:
        print(f"  {passage['bits']:6.1f} bits  {_one_line(passage['text'])}")
    print(answer["page"])


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()
