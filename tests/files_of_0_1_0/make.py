"""Make files.tar.xz and expected.json. Run it with the package of commit f4b474d (release 0.1.0), and never again:

    git worktree add /tmp/release f4b474d
    PYTHONPATH=/tmp/release .venv/bin/python tests/files_of_0_1_0/make.py

Only the command line and public names are used.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"

import observe
import torch

import mnemo

HERE = Path(__file__).resolve().parent
COMMIT = "f4b474d"

SMALL = """
--data.corpus letters --model.num-layers 2 --model.dim 8 --model.num-heads 2 --model.head-dim 4 --model.inner-dim 16
--model.init.std 0.7 --train.steps 4 --train.batch 2 --train.segment 8
--train.optimizer.lr 0.02 --train.schedule.warmup 0 --train.log-every 1 --train.eval-every 2 --train.checkpoint-every 2
--train.keep 3 --train.device cpu --evaluation.batch 2 --evaluation.limit 60 --test.batch 2 --test.memory 12
--model.dropout.inner 0.1 --model.dropout.feed-forward 0.1 --train.precision fp64
"""
LENGTH = "--model.memory.long.length 6"
INFINITE = """
--model.memory.long infinite --model.memory.long.length 4 --model.memory.long.basis 6 --model.memory.long.block 3
--model.memory.long.samples 5 --model.memory.long.widths 0.1 0.3 --model.memory.long.sticky
--model.memory.long.gate shared --test.memory None
"""
MODERN = """
--data.corpus bpe --model.positions rotary --model.norm pre --model.final-norm --model.norm-kind rms --model.qk-norm
--model.head-gate --model.activation squared_relu --train.optimizer.kind adamw --train.average.start 2
--train.average.kind ema --train.precision fp32
"""
TASK = """
--data.task.symbols 3 --data.task.train 40 --data.task.valid 6 --data.task.test 6 --model.tokens.num 2
--train.batch 4 --train.segment 6 --train.bptt 1 --train.bptt-window tumbling
--test.memory None --model.memory.long.length 0
"""
PLANS = {
    "xl": ("tiny-bytes", f"{LENGTH} --train.steps 6 --data.documents reset --train.average.start 3"),
    "lookahead": (
        "tiny-bytes",
        f"--model.memory.long lookahead {LENGTH} --model.memory.short.length 3 --model.memory.num-long 1 "
        "--data.corpus bytes",
    ),
    "compressive": (
        "tiny-bytes",
        f"--model.memory.long compressive {LENGTH} --model.memory.long.compressed 4 --model.memory.long.ratio 2 "
        "--test.memory None",
    ),
    "infinite": ("tiny-bytes", INFINITE),
    "recurrent": (
        "tiny-bytes",
        "--model.memory.long lstm --model.memory.short qrnn --model.memory.num-long 1 --model.positions no-positions "
        "--test.memory None",
    ),
    "tokens": (
        "tiny-bytes",
        f"{LENGTH} --model.tokens memory-tokens --model.tokens.num 2 --train.bptt 1",
    ),
    "words": (
        "tiny-words",
        f"{LENGTH} --data.corpus words --model.embedding.cutoffs 8 20 --model.embedding.div-val 2 "
        "--train.optimizer.kind muon",
    ),
    "modern": ("tiny-bytes", f"{LENGTH} {MODERN}"),
    "task": ("rmt-copy-seg24-m24", TASK),
    "ddp": ("tiny-bytes", f"{LENGTH} --train.parallel ddp --train.precision fp32"),
    "fsdp": ("tiny-bytes", f"{LENGTH} --train.parallel fsdp"),
}
"""Preset and overrides of every run. Most compute in float64, so that other processors give almost the same numbers."""
SHARDED = ("ddp", "fsdp")
WITHOUT_TEXT = ("task",)


def write_texts() -> None:
    """Three splits of documents, separated by NUL, and a text to continue with."""
    draw = random.Random(0)
    words = ["ab", "bca", "cab", "d", "é"]
    many = [a + b + c for a in "abc" for b in "de" for c in "abcde"]
    for kind, vocabulary in (("text", words), ("words", many)):
        folder = Path("sources", kind)
        folder.mkdir(parents=True)
        for split, count in (("train", 300), ("valid", 80), ("test", 80)):
            lines = [" ".join(draw.choice(vocabulary) for _ in range(10)) for _ in range(count // 10)]
            documents = ["\n".join(lines[i : i + 3]) + "\n" for i in range(0, len(lines), 3)]
            (folder / f"{split}.txt").write_text("\0".join(documents), encoding="utf-8")
    Path("read.txt").write_text("ab bca cab d\nab ab d cab bca", encoding="utf-8")
    Path("more.txt").write_text(" cab d\nbca ab", encoding="utf-8")


def prepare() -> None:
    for name, source, *options in (
        ("letters", "text", "chars"),
        ("bytes", "text", "bytes"),
        ("words", "words", "words"),
        ("bpe", "text", "bpe", "--vocab-size", "264"),
    ):
        tokenizer, *size = options
        observe.mnemo("prepare", name, "--from", f"sources/{source}", "--tokenizer", tokenizer, *size, "--json")


def train(name: str) -> None:
    preset, overrides = PLANS[name]
    words = ["train", preset, "--name", name, *SMALL.split(), *overrides.split(), "--json"]
    if name in SHARDED:
        two = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        subprocess.run([*two, "-m", "mnemo", *words], check=True)
    else:
        observe.mnemo(*words)
    (observe.RUNS / name / "lock").unlink()


def leave_results() -> None:
    """Files in the `results` folders of two runs, without the pictures."""
    run = observe.RUNS / "xl"
    for options in (
        (),
        ("--sweep-memory", "0,4,8"),
        ("--by-position", "--split", "test"),
        ("--find-length",),
    ):
        observe.mnemo("eval", str(run), *options)
    observe.mnemo("generate", str(run), "--prompt", "ab ", "--tokens", "20", "--top-k", "2")
    observe.mnemo("eval", str(observe.RUNS / "task"))
    for picture in [*run.glob("results/*.png"), *run.glob("results/*.svg")]:
        picture.unlink()


def save_memories() -> None:
    observe.MEMORIES.mkdir()
    for name in PLANS.keys() - WITHOUT_TEXT - {"words"}:
        save = ("--save", str(observe.MEMORIES / f"{name}.memory"))
        observe.answer("read", str(observe.RUNS / name), "read.txt", *save)
    save_states()


@torch.no_grad()
def save_states() -> None:
    """A plain state of two rows, and one with an open segment, which the command line does not write."""
    model = mnemo.open_run(observe.RUNS / "xl", "last", "cpu").model
    tokens = torch.arange(22).view(2, 11) % model.config.vocab_size
    _, state = model(tokens[:, : observe.SEGMENT], model.init(2))
    mnemo.save_memory(observe.MEMORIES / "state.memory", model, state, segment=observe.SEGMENT)
    decoder = model.decoder(segment=observe.SEGMENT, batch=2)
    decoder.feed(tokens)
    mnemo.save_memory(observe.MEMORIES / "decode.memory", model, decoder.state(), segment=observe.SEGMENT)


def export() -> None:
    for name in ("xl", "fsdp"):
        observe.mnemo("export", str(observe.RUNS / name), "--output", f"exports/{name}", "--json")
    observe.mnemo("convert", str(observe.RUNS / "words"), "hf/transfo-xl", "--to", "hf", "--json")


def export_to_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from mnemo.hf import add_memory, from_run, save_adapter

    from_run(observe.RUNS / "xl").save_pretrained("hf/xl")
    torch.manual_seed(0)
    sizes: dict[str, Any] = dict(vocab_size=12, n_positions=32, n_embd=8, n_layer=1, n_head=2, initializer_range=0.4)
    backbone = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None, pad_token_id=0))
    backbone.save_pretrained("hf/backbone")
    model = add_memory(backbone, tokens=2, segment=5)
    save_adapter(model, "hf/adapter")
    model.save_pretrained("hf/memory")


def pack() -> None:
    def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(HERE / "files.tar.xz", "w:xz") as archive:
        for name in ("data", "exports", "hf", "memories", "more.txt", "runs"):
            archive.add(name, filter=without_owner)


def expected() -> dict[str, object]:
    runs, work = observe.RUNS, observe.WORK
    work.mkdir()
    texts = sorted(PLANS.keys() - WITHOUT_TEXT)
    memories = sorted(path.stem for path in observe.MEMORIES.iterdir() if path.stem in PLANS)
    return {
        "commit": COMMIT,
        "made_with": observe.machine(),
        "scores": {name: observe.scores(runs / name) for name in sorted(PLANS)},
        "greedy": {name: observe.greedy(runs / name) for name in texts},
        "memories": {name: observe.memory(runs / name, observe.MEMORIES / f"{name}.memory") for name in memories},
        "states": {name: observe.state_logits(observe.MEMORIES / f"{name}.memory") for name in ("decode", "state")},
        "resumed_alone": {name: observe.sharded_resumed_alone(name) for name in SHARDED},
        "fine_tuned": {
            source: observe.fine_tuned(Path(source), source.replace("/", "-"))
            for source in ("runs/xl", "runs/ddp", "exports/fsdp")
        },
        "exports": {
            name: [observe.scores(Path("exports", name)), observe.greedy(Path("exports", name))]
            for name in ("xl", "fsdp")
        },
        "transfo_xl": observe.converted_back(Path("hf/transfo-xl"), "transfo-xl"),
        "auto_model": observe.auto_model(Path("hf/xl")),
        "adapted": observe.adapted(),
    }


def main() -> None:
    os.chdir(tempfile.mkdtemp())
    os.environ["MNEMO_DATA"] = "data"
    write_texts()
    prepare()
    for name in PLANS:
        train(name)
    leave_results()
    save_memories()
    export()
    export_to_transformers()
    pack()
    (HERE / "expected.json").write_text(json.dumps(expected(), indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
