"""`mnemo bench --serving`: load of an engine, and one long conversation beside a growing cache."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemo.cli import console
from mnemo.errors import MnemoError
from mnemo.files.json_file import write_json
from mnemo.recipes.presets import is_preset, preset
from mnemo.storage.run_header import find_run

if TYPE_CHECKING:
    import torch

    from mnemo.model import Model
    from mnemo.serving.load.growth import GrowthPoint
    from mnemo.serving.load.sessions import LoadResult

FORMAT_VERSION = 1
HTTP_PROMPT, HTTP_TOKENS = 512, 128
"""Characters that a request over HTTP reads, and tokens that it writes."""
SHORTEST = 200
CPU_LENGTH, GPU_LENGTH = 8_000, 100_000


def session_counts(words: str) -> list[int]:
    """The numbers of sessions in `1,8,64`."""
    try:
        counts = [int(word) for word in words.split(",")]
    except ValueError:
        raise MnemoError(f"--sessions {words}: expected numbers that are separated by commas") from None
    if min(counts) < 1:
        raise MnemoError(f"--sessions {words}: the numbers must be positive")
    return counts


def check_target(name: str) -> None:
    """Raise MnemoError unless a name is that of a preset or run; imports no torch."""
    if not is_preset(name):
        find_run(name)


def check_length(length: int | None) -> None:
    if length is not None and length < SHORTEST:
        raise MnemoError(f"--length {length} must be at least {SHORTEST}")


def measure(
    target: str,
    device: torch.device,
    counts: Sequence[int],
    rows: int | None,
    length: int | None,
    record: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, list[GrowthPoint]]]:
    """Everything that was measured, and the curves over the length of a conversation."""
    from mnemo.serving.load.growth import lengths_up_to
    from mnemo.serving.load.sessions import Workload, measure_sessions

    model, segment = open_model(target, device)
    load = Workload(rows=rows, prompt=min(512, segment))
    results = measure_sessions(model, segment, counts, load, console.progress)
    _print_sessions(results)
    length = length or (GPU_LENGTH if device.type == "cuda" else CPU_LENGTH)
    curves = growth_curves(model, segment, lengths_up_to(length))
    _print_curves(curves)
    about = {"model": target, "parameters": sum(p.numel() for p in model.parameters()), "segment": segment}
    about |= {"dtype": str(next(model.parameters()).dtype), "prompt": load.prompt, "tokens": load.tokens}
    found = record | {"serving": about | {"sessions": [result.to_json() for result in results]}}
    found["serving"]["growth"] = {name: [point.to_json() for point in points] for name, points in curves.items()}
    return found, curves


def measure_server(url: str, sessions: str, out: Path | None, as_json: bool) -> int:
    """Measure a running server over HTTP."""
    from mnemo.serving.load.http_sessions import HttpServer, measure_http

    counts, server = session_counts(sessions), HttpServer.at(url, os.environ.get("MNEMO_API_KEY"))
    results = measure_http(server, counts, prompt=HTTP_PROMPT, tokens=HTTP_TOKENS, progress=console.progress)
    found = {"format_version": FORMAT_VERSION, "http": [result.to_json() for result in results]}
    if out is not None:
        write_json(out, found)
    if as_json:
        console.print_json(found)
        return 0
    rows = []
    for result in results:
        first = (f"{result.first_event_p50:.3f}", f"{result.first_event_p99:.3f}")
        gaps = (f"{1e3 * result.event_p50:.2f}", f"{1e3 * result.event_p99:.2f}")
        rows.append((result.sessions, *first, f"{result.tokens_per_second:,.0f}", *gaps))
    console.table(rows, ("requests", "first event s", "p99", "tokens/s", "ms/event", "p99"))
    return 0


def open_model(target: str, device: torch.device) -> tuple[Model, int]:
    """A run's model, or a preset's with random weights; in the type that `mnemo generate` computes in."""
    import torch

    from mnemo.inference.segment_scorer import with_dtype
    from mnemo.model import Model
    from mnemo.storage.run_folder import open_run

    if is_preset(target):
        recipe = preset(target)
        torch.manual_seed(0)
        model = Model(recipe.model).to(device).eval()
    else:
        run = open_run(find_run(target), "best", device)
        recipe, model = run.recipe, run.model.eval()
    if device.type == "cuda" and recipe.train.precision == "bf16":
        model = with_dtype(model, torch.bfloat16)
    return model, recipe.train.segment


def growth_curves(model: Model, segment: int, lengths: Sequence[int]) -> dict[str, list[GrowthPoint]]:
    """Cost and memory over the length: of the model, and of a plain transformer if its library is installed."""
    from mnemo.serving.load.growth import Conversation, EngineConversation, measure_growth

    vocab_size, curves = model.config.vocab_size, {}
    ours: Conversation = EngineConversation(model, segment)
    curves[ours.name] = measure_growth(ours, lengths, vocab_size, console.progress)
    if importlib.util.find_spec("transformers") is None:
        print("mnemo: transformers is not installed: no comparison with a growing cache", file=sys.stderr)
        return curves
    from mnemo.hf.growing_cache import GrowingCacheConversation

    theirs = GrowingCacheConversation(model)
    curves[theirs.name] = measure_growth(theirs, lengths, vocab_size, console.progress)
    return curves


def save(found: dict[str, Any], curves: dict[str, list[GrowthPoint]], out: Path | None) -> None:
    """Write the numbers, and pictures of the curves beside them."""
    if out is None:
        return
    from mnemo.serving.load.picture import write_figures

    write_json(out, found)
    for path in write_figures(out, curves):
        print(f"wrote {path}", file=sys.stderr)


def _print_sessions(results: Sequence[LoadResult]) -> None:
    headers = (
        "sessions",
        "rows",
        "first token s",
        "p99",
        "written/s",
        "of a batch's",
        "rows in use",
        "ms/token",
        "p99",
    )
    headers += ("all tokens/s", "MiB/session")
    rows = []
    for found in results:
        first = (f"{found.first_token_p50:.3f}", f"{found.first_token_p99:.3f}")
        speed = (f"{found.tokens_per_second:,.0f}", f"{found.share:.0%}", f"{found.rows_in_use:.0%}")
        gaps = (f"{1e3 * found.token_p50:.2f}", f"{1e3 * found.token_p99:.2f}")
        total, size = f"{found.total_tokens_per_second:,.0f}", f"{found.state_bytes / 2**20:.1f}"
        rows.append((found.sessions, found.rows, *first, *speed, *gaps, total, size))
    console.table(rows, headers)


def _print_curves(curves: dict[str, list[GrowthPoint]]) -> None:
    headers = ("", "tokens so far", "ms/written token", "GPU ms", "ms/read token", "MiB")
    rows = [
        (
            name,
            f"{point.length:,}",
            f"{1e3 * point.seconds_per_token:.2f}",
            "-" if point.device_seconds_per_token is None else f"{1e3 * point.device_seconds_per_token:.2f}",
            f"{1e3 * point.read_seconds_per_token:.3f}",
            f"{point.bytes / 2**20:,.1f}",
        )
        for name, points in curves.items()
        for point in points
    ]
    console.table(rows, headers)
