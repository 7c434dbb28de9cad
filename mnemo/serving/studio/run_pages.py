"""Data of the page Runs: the list, one run in detail, and curves that grow while a run is trained."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from mnemo.files.json_file import without_nan
from mnemo.report.loss_units import LossUnit, loss_unit
from mnemo.report.number_text import amount
from mnemo.report.run_page import environment
from mnemo.report.run_record import run_record
from mnemo.report.run_status import status
from mnemo.report.run_summary import plan_words
from mnemo.report.runs import Metric, Run, read_run
from mnemo.serving.errors import invalid, json_text
from mnemo.serving.server import Server, server_of
from mnemo.serving.studio.answers import NO_STORE, computed
from mnemo.serving.studio.run_names import run_path, run_paths, states
from mnemo.storage.run_header import METRICS, RECIPE, RUNS
from mnemo.storage.shipped import is_shipped, load_card
from mnemo.training.run_states import RunState, state_of

SECONDS_BETWEEN_LOOKS = 1.0
LOOKS_BETWEEN_LISTS = 3
"""Looks at the curves for each look at all run folders, which takes longer."""
LOOKS_BETWEEN_SIGNS = 15
"""Looks without news after which a comment is sent: proxies close connections that are silent."""
MOST_CURVES = 16

Event = tuple[str, Any]


class RunPages:
    def __init__(self, runs: Path) -> None:
        self._runs = runs

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/studio/api/runs", computed(self._list)),
            Route("/studio/api/runs/events", self._events),
            Route("/studio/api/run", computed(self._detail)),
        ]

    def _list(self, request: Request) -> Any:
        return {"runs": [listed(state) for state in states(self._runs)], "folder": str(self._runs)}

    def _detail(self, request: Request) -> Any:
        name = request.query_params.get("name", "")
        path = run_path(self._runs, name)
        state = state_of(path, name)
        return {**listed(state), **detail(read_run(path, name)), "commands": commands(state, self._runs)}

    async def _events(self, request: Request) -> Response:
        """Server-sent events: `runs` when the list changes, `curve` when a named run has new losses."""
        names = list(dict.fromkeys(request.query_params.getlist("name")))
        if len(names) > MOST_CURVES:
            raise invalid(f"at most {MOST_CURVES} runs can be compared, not {len(names)}", "name")
        headers = {**NO_STORE, "X-Accel-Buffering": "no"}
        events = _stream(Follower(self._runs, names), server_of(request))
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def _stream(follower: Follower, server: Server) -> AsyncIterator[str]:
    silent = 0
    while not server.stopping:
        news = await run_in_threadpool(follower.news)
        for name, content in news:
            yield f"event: {name}\ndata: {json_text(without_nan(content))}\n\n"
        silent = 0 if news else silent + 1
        if silent == LOOKS_BETWEEN_SIGNS:
            silent = 0
            yield ": nothing new\n\n"
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)


class Follower:
    """Looks at runs again and again, and reports what has changed since the last look."""

    def __init__(self, runs: Path, names: Sequence[str]) -> None:
        self._runs, self._curves = runs, [CurveFollower(name) for name in names]
        self._looks, self._listed = 0, None

    def news(self) -> list[Event]:
        paths = run_paths(self._runs)
        events = [event for curve in self._curves for event in curve.news(paths.get(curve.name))]
        if self._looks % LOOKS_BETWEEN_LISTS == 0:
            now = [listed(state) for state in states(self._runs)]
            events += [("runs", now)] if now != self._listed else []
            self._listed = now
        self._looks += 1
        return events


class CurveFollower:
    """The losses of one run; only points that were not sent yet, unless the run was cut back by a resume."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stamp: tuple[object, ...] | None = None
        self._sent: dict[str, list[list[float]]] = {"train": [], "valid": []}

    def news(self, path: Path | None) -> list[Event]:
        stamp = (None,) if path is None else _stamp(path)
        if stamp == self._stamp:
            return []
        self._stamp = stamp
        if path is None:
            return [("gone", {"name": self.name})]
        found = read_run(path, self.name)
        unit = loss_unit(found.corpus.get("unit"))
        now = {"train": points(found.train, unit), "valid": points(found.valid, unit)}
        grown = all(now[split][: len(sent)] == sent for split, sent in self._sent.items())
        new = {split: now[split][len(sent) if grown else 0 :] for split, sent in self._sent.items()}
        event = {"name": self.name, "append": grown, **new, **_about_curve(found, unit)}
        self._sent = now
        return [("curve", event)]


def _stamp(path: Path) -> tuple[object, ...]:
    try:
        stat = (path / METRICS).stat()
    except OSError:
        return ("no metrics",)
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def points(metrics: Sequence[Metric], unit: LossUnit) -> list[list[float]]:
    return [[metric.step, unit.of(metric.loss)] for metric in metrics]


def _about_curve(found: Run, unit: LossUnit) -> dict[str, Any]:
    now = status(found)
    return {
        "corpus": found.corpus_name,
        "unit": unit.short,
        "unit_words": unit.long,
        "logarithmic": unit.logarithmic,
        "status": None if now is None else now._asdict(),
    }


def listed(state: RunState) -> dict[str, Any]:
    """A run of the list; the best loss also in the unit of its corpus."""
    unit = loss_unit(None if state.header is None else state.header.corpus.get("unit"))
    # An export has no best.json; its losses are those of the run that it was made from.
    best = read_run(state.path, state.name).best if state.state == "exported" else state.best
    shown = None if best is None else {"step": best.step, "loss": best.loss, "value": unit.of(best.loss)}
    return {**run_record(state), "best": shown, "unit": unit.short, "shipped": is_shipped(state.path)}


def detail(found: Run) -> dict[str, Any]:
    unit = loss_unit(found.corpus.get("unit"))
    results = found.results
    return {
        "facts": [[name, str(value)] for name, value in (*_facts(found), *environment(found))],
        "card": load_card(found.path) if is_shipped(found.path) else None,
        "curve": {"train": points(found.train, unit), "valid": points(found.valid, unit), **_about_curve(found, unit)},
        "scores": [asdict(score) | {"value": unit.of(score.loss)} for score in results.scores],
        "answers": [asdict(answer) for answer in results.answers],
        "sweeps": [[[score.memory, unit.of(score.loss)] for score in sweep] for sweep in results.sweeps],
        "samples": [asdict(sample) for sample in results.samples],
        "rollbacks": found.rollbacks,
        "notes": [] if is_shipped(found.path) else found.notes,  # exports lack some files of a run
        "recipe": json.dumps(found.header, indent=2, ensure_ascii=False) if found.header else "",
    }


def _facts(found: Run) -> list[tuple[str, object]]:
    if found.recipe is None:
        return []
    model, train = found.recipe.model, found.recipe.train
    speed = found.tokens_per_second
    return [
        ("Model", f"{model.num_layers} layers of {model.dim}, {amount(found.parameters)} weights"),
        ("Memory", plan_words(model)),
        ("Segment", f"{train.segment:,} tokens, batch of {train.batch:,}"),
        ("Corpus", f"{found.corpus_name} ({found.corpus.get('unit')}s)"),
        *([] if speed is None else [("Speed", f"{amount(speed)} tokens/s")]),
    ]


def commands(state: RunState, runs: Path) -> list[dict[str, str]]:
    """Command lines for the next steps with a run, in the order of their use."""
    found = {label: f"mnemo {command}" for label, command in _commands(state, runs).items()}
    return [{"label": label, "command": command} for label, command in found.items()]


def _commands(state: RunState, runs: Path) -> dict[str, str]:
    name, place = shlex.quote(state.name), shlex.quote(str(state.path))
    folder = "" if runs == RUNS else f" --runs {shlex.quote(str(runs))}"
    if is_shipped(state.path):
        return {"Chat": f"chat {name}", "Fine-tune": f"train --from {name} --data mybook.txt"}
    if state.header is None:
        return {"Check": f"verify {place}"}
    again, recipe = shlex.quote(f"{state.path.name}-again"), shlex.quote(str(state.path / RECIPE))
    resume = f"train --resume {name}{folder}"
    first = {
        "being trained": {"Watch": f"watch {place}"},
        "finished": {"Train longer": f"{resume} --train.steps {2 * state.header.recipe.train.steps}"},
        "converted": {"Fine-tune": f"train --from {place}"},
        "exported": {"Fine-tune": f"train --from {place}"},
    }.get(state.state, {"Resume": resume})
    repeat = {"Repeat": f"train --config {recipe} --name {again}{folder}"}
    return {**first, **repeat, "Score": f"eval {place}", "Chat": f"chat {place}"}
