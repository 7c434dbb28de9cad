"""Run cases with the `mnemo` that PYTHONPATH names, in one process: `python -P run_cases.py PLAN ROOT`.

PLAN is a JSON file: for every case its folder and its steps. Only mnemo's command line and public names are used, and
nothing of this folder is imported, so that any commit can run. Standard output of command N goes to
`outputs/N-VERB.json` (or `.txt`), exit codes to `exits.json`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Main = Callable[[list[str]], int]
INTERNAL_ERROR = 70


def main(plan: Path, root: Path) -> None:
    mnemo_main = _load_main(root)
    for case in json.loads(plan.read_text()):
        begin = time.monotonic()
        folder = Path(case["folder"])
        os.chdir(folder)
        _run_case(case, mnemo_main)
        print(f"  {case['name']}: {time.monotonic() - begin:.1f} s", flush=True)


def _load_main(root: Path) -> Main:
    import mnemo.cli

    found = Path(mnemo.cli.__file__).resolve()
    if not found.is_relative_to(root.resolve()):
        sys.exit(f"mnemo was imported from {found}, not from {root}")
    return mnemo.cli.main


def _run_case(case: dict[str, Any], mnemo_main: Main) -> None:
    _seed()
    Path("outputs").mkdir()
    exits: list[dict[str, Any]] = []
    for number, step in enumerate(case["steps"], 1):
        if step["kind"] == "Remove":
            _remove(Path(step["path"]))
        elif step["kind"] == "PublicCalls":
            exits.append(_call_public(f"{number:02d}-public", step))
        else:
            exits.append(_call_verb(f"{number:02d}-{step['arguments'][0]}", step, mnemo_main))
    Path("exits.json").write_text(json.dumps(exits, indent=1))


def _call_verb(name: str, step: dict[str, Any], mnemo_main: Main) -> dict[str, Any]:
    code, out, err = _call(mnemo_main, step["arguments"])
    suffix = "json" if "--json" in step["arguments"] and code == 0 else "txt"
    Path("outputs", f"{name}.{suffix}").write_text(out, encoding="utf-8")
    Path("outputs", f"{name}.stderr").write_text(err, encoding="utf-8")
    return {"command": name, "exit": code, "expected": step["exit"]}


def _call_public(name: str, step: dict[str, Any]) -> dict[str, Any]:
    """A failure is recorded like that of a command, so that the other cases run."""
    code, problem = 0, ""
    try:
        _save_public(step["run"], step["open_segment"])
    except Exception:
        code, problem = INTERNAL_ERROR, traceback.format_exc()
    Path("outputs", f"{name}.stderr").write_text(problem, encoding="utf-8")
    return {"command": name, "exit": code, "expected": 0}


def _save_public(run: str, open_segment: bool) -> None:
    """Two segments, the second with rows that start anew and end early; then a decoder, token by token."""
    import torch
    from safetensors.torch import save_file

    import mnemo

    loaded = mnemo.open_run(run, device="cpu")
    model, segment, saved = loaded.model, loaded.recipe.train.segment, {}
    tokens = torch.arange(6 * segment).mul(7).remainder(loaded.recipe.model.vocab_size).view(2, -1)
    lengths, starts = torch.tensor([segment, segment - 1]), torch.tensor([True, False])
    with torch.no_grad():
        output, state = model(tokens[:, :segment], loaded.first_state(2))
        saved["first"] = output.hidden
        output, state = model(tokens[:, segment : 2 * segment], state, lengths=lengths, starts=starts)
        saved["second"] = output.hidden
        decoder = mnemo.Decoder(model, loaded.first_state(2, cached=True), segment)
        for position in range(tokens.shape[1] - open_segment):
            saved[f"decoded/{position:02d}"] = decoder.feed(tokens[:, position : position + 1]).hidden
    save_file({name: tensor.contiguous() for name, tensor in saved.items()}, "public.safetensors")
    mnemo.save_memory("state.memory", model, state, segment=segment)
    mnemo.save_memory("decoder.memory", model, decoder.state(), segment=segment)


def _seed() -> None:
    """Make a case independent of the cases that ran in this process before it."""
    import numpy
    import torch

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def _call(mnemo_main: Main, arguments: list[str]) -> tuple[int, str, str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = mnemo_main(arguments)
    out.flush()
    return code, out.buffer.getvalue().decode(), err.getvalue()  # type: ignore[attr-defined]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
