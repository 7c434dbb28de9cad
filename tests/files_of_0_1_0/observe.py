"""Measurements of the stored files, taken when the files were made and again by the test.

Only the command line and public names are used. All paths are relative to the folder of the unpacked archive, which is
the current folder, and MNEMO_DATA names its `data` folder. Measurements that write do so in a copy under `work`.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemo import DecodeState, load_memory, open_run
from mnemo.cli import main

RUNS, MEMORIES, WORK = Path("runs"), Path("memories"), Path("work")
SEGMENT = 8
"""Segment length of the runs."""
CHANGING = ("seconds", "files", "saved", "text", "run")
"""Fields of answers that depend on the clock or on where the files are."""


def machine() -> dict[str, str]:
    """What the last bits of floating-point results depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "instructions": capability, "processor": names[0] if names else ""}


def mnemo(*words: str) -> str:
    """Run the command and return its standard output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = main(words)
    assert code == 0, f"mnemo {' '.join(words)} ended with exit code {code}"
    return output.getvalue()


def answer(*words: str) -> Any:
    """The command's JSON without the fields that change from run to run."""
    return _lasting(json.loads(mnemo(*words, "--device", "cpu", "--json")))


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(item) for name, item in value.items() if name not in CHANGING}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def scores(run: Path) -> dict[str, Any]:
    """The best and the newest weights, each scored on its own split."""
    copy = WORK / f"scored-{run.parent}-{run.name}"
    shutil.copytree(run, copy)
    return {
        "best": answer("eval", str(copy), "--split", "valid"),
        "last": answer("eval", str(copy), "--split", "test", "--which", "last"),
    }


def greedy(run: Path, *options: str) -> list[Any]:
    """The likeliest continuation, as token ids and as text."""
    found = answer("generate", str(run), "--temperature", "0", "--tokens", "24", "--no-save", *options)
    return [found["tokens"], found["texts"]]


def memory(run: Path, file: Path) -> dict[str, Any]:
    """What follows from a memory file: text from the open segment, and the loss on further text."""
    return {
        "generate": greedy(run, "--memory", str(file)),
        "read": answer("read", str(run), "more.txt", "--memory", str(file)),
    }


@torch.no_grad()
def state_logits(file: Path) -> list[Any]:
    """Logits of four further tokens after a plain state of two rows, or after one with an open segment."""
    model = open_run(RUNS / "xl", "last", "cpu").model
    memory = load_memory(file, model).memory
    tokens = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])
    if isinstance(memory, DecodeState):
        out = model.decoder(memory, segment=SEGMENT).feed(tokens)
    else:
        out, _ = model(tokens, memory)
    return model.logits(out).tolist()


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def steps(run: Path) -> list[Path]:
    """Folders of the checkpoints, oldest first."""
    return sorted((run / "checkpoints").iterdir())


def cut_back(run: Path, number: int, name: str) -> Path:
    """A copy of a run in which only the oldest `number` checkpoints are left."""
    copy = WORK / name
    shutil.copytree(run, copy)
    for newer in steps(copy)[number:]:
        shutil.rmtree(newer)
    return copy


def resume(run: Path) -> None:
    mnemo("train", "--resume", str(run), "--json")


def last_weights(run: Path) -> dict[str, Tensor]:
    return open_run(run, "last", "cpu").model.state_dict()


def sharded_resumed_alone(name: str) -> list[dict[str, Any]]:
    """Metrics of a run of two processes that one process continues from the older checkpoint."""
    run = cut_back(RUNS / name, 1, f"{name}-alone")
    resume(run)
    return metrics(run)


def fine_tuned(source: Path, name: str) -> list[dict[str, Any]]:
    """Metrics of a new run that starts from the weights of another run or of an exported folder."""
    mnemo("train", "--from", str(source), "--runs", str(WORK), "--name", name, "--train.steps", "2", "--json")
    return metrics(WORK / name)


def converted_back(folder: Path, name: str) -> dict[str, Any]:
    """The score of a Hugging Face TransfoXL folder that is converted to a run again."""
    run = WORK / name
    mnemo("convert", str(folder), str(run), "--segment", "8", "--corpus", "words", "--device", "cpu", "--json")
    return answer("eval", str(run), "--batch", "2")


@torch.no_grad()
def auto_model(folder: Path) -> list[Any]:
    """Logits of the folder's model, token ids of its tokenizer, and a greedy continuation, by the Auto classes."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import mnemo.hf  # noqa: F401  which registers the models

    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer("ab bca cab d ab")["input_ids"]])
    written = model.generate(ids, max_new_tokens=8, do_sample=False)
    return [ids.tolist(), model(ids).logits.tolist(), written.tolist()]


@torch.no_grad()
def adapted() -> list[Any]:
    """Logits of a stored adapter around its backbone, and of the same model stored whole."""
    from transformers import AutoModelForCausalLM

    from mnemo.hf import load_adapter

    backbone = AutoModelForCausalLM.from_pretrained("hf/backbone")
    models: list[Any] = [
        load_adapter("hf/adapter", backbone).eval(),
        AutoModelForCausalLM.from_pretrained("hf/memory").eval(),
    ]
    ids = torch.arange(12)[None]
    return [model(input_ids=ids, return_logits=True).logits.tolist() for model in models]


def page(run: Path) -> str:
    """The report of a run."""
    out = WORK / "report.html"
    mnemo("report", str(run), "--out", str(out))
    return out.read_text(encoding="utf-8")
