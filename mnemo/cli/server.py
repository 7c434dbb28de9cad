"""Load the models of `mnemo serve`, and run the server until it is stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.routing import BaseRoute

from mnemo.cli.serve import ServeArgs, is_transformers_folder
from mnemo.serving.app import create_app
from mnemo.serving.batched_engine import BatchedEngine
from mnemo.serving.listening import bind, run_until_stopped
from mnemo.serving.served_model import ServedModel, served_run
from mnemo.serving.settings import Settings
from mnemo.serving.store import SessionStore
from mnemo.session.text_run import with_tokenizer, with_weights
from mnemo.storage.run_folder import open_run


def greet(address: str, models: list[ServedModel], settings: Settings) -> None:
    """Print the address, the models and a command to try."""
    print(f"mnemo: serving {', '.join(model.name for model in models)} at {address}/v1 (Ctrl-C stops)", file=sys.stderr)
    if settings.host in ("0.0.0.0", "::"):
        print("mnemo: other machines can reach this server", file=sys.stderr)
    key = "" if settings.api_key is None else ' -H "Authorization: Bearer $MNEMO_API_KEY"'
    body = f'{{"model": "{models[0].name}", "prompt": "It was a dark", "max_tokens": 50}}'
    command = f"curl {address}/v1/completions -H 'Content-Type: application/json'{key} -d '{body}'"
    print(f"mnemo: try: {command}", file=sys.stderr)
    sys.stderr.flush()


def serve(
    args: ServeArgs,
    settings: Settings,
    folders: dict[str, Path],
    routes: Sequence[BaseRoute] = (),
    greet: Callable[[str, list[ServedModel], Settings], None] = greet,
) -> int:
    """Serve models until a signal stops the server. `routes`: those of the studio. `greet`: called at the start."""
    listener = bind(settings)
    with listener:
        models = [load_model(name, folder, args) for name, folder in folders.items()]
        store = open_store(args.sessions, models, settings)
        app = create_app(models, store, settings, routes)
        address = f"http://{_shown_host(settings.host)}:{listener.getsockname()[1]}"
        run_until_stopped(app, listener, settings, lambda: greet(address, models, settings))
    print("mnemo: the server has stopped", file=sys.stderr)
    return 0


def open_store(folder: Path, models: Sequence[ServedModel], settings: Settings) -> SessionStore:
    return SessionStore(
        folder,
        [model.sessions for model in models],
        memory_bytes=settings.session_memory_bytes,
        most_sessions=settings.max_sessions,
    )


def load_model(name: str, folder: Path, args: ServeArgs) -> ServedModel:
    if is_transformers_folder(folder):
        from mnemo.hf.served.folder import served_folder

        return served_folder(name, folder, args.device)
    opened = with_weights(with_tokenizer(open_run(folder, args.which, args.device)), args.weights)
    segment = opened.run.recipe.train.segment
    return served_run(name, opened, BatchedEngine(opened.run.model, segment, rows=args.rows))


def _shown_host(host: str) -> str:
    """The host in an address to open on this machine."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{shown}]" if ":" in shown else shown
