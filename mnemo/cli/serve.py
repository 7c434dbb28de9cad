"""Serve trained models over HTTP, to the clients of OpenAI's API and with sessions that keep a model's memory.

    mnemo serve                        the run that was trained last, or the model that comes with mnemo
    mnemo serve RUN ...                other runs, and folders of transformers models with memory tokens
    mnemo serve NAME=RUN ...           under other names

The server listens on this machine only. `--host 0.0.0.0` opens it to other machines, and then needs an API key.
Ctrl-C stops it: running answers are finished, and sessions are saved.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from mnemo.cli.run_arguments import RunArgs, chosen_run
from mnemo.errors import MnemoError, install_command, require_positive
from mnemo.inference.weight_formats import WeightFormat
from mnemo.recipes.option_types import Several
from mnemo.serving.settings import Settings
from mnemo.storage.run_header import Which, find_run

API_KEY = "MNEMO_API_KEY"
LIBRARIES = ("starlette", "uvicorn", "prometheus_client")
HF_CONFIG = "config.json"
"""In the folder of a transformers model"""


@dataclass(frozen=True, kw_only=True)
class ServeArgs:
    """The arguments of every verb that starts a server."""

    runs: Annotated[Several[str], tyro.conf.Positional] = ()
    """Runs (folder, or name under runs/) and folders of transformers models with memory; NAME=RUN names one."""
    which: Which = "best"
    """The checkpoint with the lowest validation loss, or the last one."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto: a GPU if there is one."""
    weights: WeightFormat = "fp32"
    """On a CPU, round the weights of the layers of runs: int8 is faster, bf16 only for some models."""
    rows: int | None = None
    """Largest number of texts that a step writes together; if unset, 64 on a GPU and 8 on a CPU."""
    host: str = Settings.host
    """Address to listen on; any other than this machine's own needs an API key."""
    port: int = Settings.port
    """Port to listen on; 0: any free port."""
    api_key: str | None = None
    """Key that clients must send; better set as the environment variable MNEMO_API_KEY, which others cannot see."""
    allow_host: Several[str] = ()
    """Further names of this server that clients use in addresses, such as a name of a proxy."""
    allow_origin: Several[str] = ()
    """Web pages of these origins may use the server (CORS), such as https://example.org; none by default."""
    max_requests: int = Settings.max_requests
    """Requests that compute or wait; further ones get the status 429."""
    max_tokens: int = Settings.max_tokens
    """Largest number of tokens that a request may write."""
    max_body: int = Settings.max_body_bytes
    """Largest JSON body in bytes."""
    max_upload: int = Settings.max_upload_bytes
    """Largest text or memory file that is uploaded to a session, in bytes."""
    sessions: Path = Path("sessions")
    """Folder of the sessions; one server at a time can use it."""
    session_memory: int = Settings.session_memory_bytes
    """Bytes of memory for the states of sessions; those that were not used for the longest time go to disk."""
    max_sessions: int = Settings.max_sessions
    """Largest number of sessions, in memory and on disk."""
    timeout: float = Settings.request_seconds
    """Seconds after which a completion is stopped."""
    shutdown_timeout: float = Settings.shutdown_seconds
    """Seconds that running answers have to finish when the server is stopped."""


@dataclass(frozen=True, kw_only=True)
class Args(ServeArgs):
    pass


def run(args: Args) -> int:
    settings, models = checked(args)
    from mnemo.cli.server import serve

    return serve(args, settings, models)


def checked(args: ServeArgs) -> tuple[Settings, dict[str, Path]]:
    """The settings, and the folders of the models by their names; errors come before torch is imported."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise MnemoError(f"the server needs {', '.join(missing)}: {install_command('serve')}")
    require_positive("--rows", args.rows)
    return settings_of(args), named_models(args.runs)


def settings_of(args: ServeArgs) -> Settings:
    return Settings(
        host=args.host,
        port=args.port,
        api_key=args.api_key or os.environ.get(API_KEY) or None,
        allowed_hosts=args.allow_host,
        allowed_origins=args.allow_origin,
        max_requests=args.max_requests,
        max_tokens=args.max_tokens,
        max_body_bytes=args.max_body,
        max_upload_bytes=args.max_upload,
        session_memory_bytes=args.session_memory,
        max_sessions=args.max_sessions,
        request_seconds=args.timeout,
        shutdown_seconds=args.shutdown_timeout,
    )


def named_models(runs: tuple[str, ...]) -> dict[str, Path]:
    """Folders by names; without any, that of the last run, or of the model that comes with mnemo, after a line."""
    if not runs:
        folder = chosen_run(RunArgs())
        return {folder.name: folder}
    found: dict[str, Path] = {}
    for each in runs:
        name, equals, run = each.rpartition("=") if not Path(each).exists() else ("", "", each)
        folder = model_folder(run)
        name = name if equals else folder.resolve().name
        if not name or name in found:
            raise MnemoError(f"two models are named '{name}': name one by NAME={run}" if name else f"'{each}': no name")
        found[name] = folder
    return found


def model_folder(name: str) -> Path:
    """The folder of a run, or of a transformers model with memory."""
    return Path(name) if is_transformers_folder(Path(name)) else find_run(name)


def is_transformers_folder(folder: Path) -> bool:
    return (folder / HF_CONFIG).is_file()
