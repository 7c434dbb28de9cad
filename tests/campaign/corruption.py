"""Damage or exchange files of runs, corpora, memories and exports, and count how many commands notice it.

    python tests/campaign/corruption.py --trials 12

An attack is noticed if the command that uses the file ends with exit code 1 or 2, or if it continues after a message
that names the damaged file or folder (a run resumes from an earlier checkpoint). The script uses little but the
command line and the layout of the folders, so that it can be run against other versions too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from mnemo.cli import main as mnemo
from mnemo.storage.run_folder import write_best

TRAIN = (
    "train tiny-bytes --data.corpus book --train.steps 9 --train.checkpoint-every 3 --train.eval-every 6 "
    "--train.batch 2 --train.segment 8 --train.log-every 1 --train.keep 3 --train.device cpu --evaluation.batch 2 "
    "--model.num-layers 1 --model.dim 8 --model.num-heads 1 --model.head-dim 4 --model.inner-dim 8 "
    "--model.memory.long.length 4 --test.batch 2"
).split()
NEWEST, OLDER = "runs/a/checkpoints/step-00000006", "runs/a/checkpoints/step-00000003"
RESUME = ("train", "--resume", "runs/a", "--json")
EVAL = ("eval", "runs/a", "--which", "last", "--json")
EVAL_EXPORT = ("eval", "export", "--json")
GENERATE = ("generate", "runs/a", "--tokens", "4", "--no-save", "--temperature", "0")
REMEMBER = (*GENERATE, "--memory", "text.memory")
REPORT = ("report", "runs/a", "--out", "page")


class Attack(NamedTuple):
    name: str
    damage: Callable[[random.Random], Path]
    """Damages something in the current folder, and returns what."""
    command: tuple[str, ...]
    is_random: bool = True
    """Whether trials differ; other attacks are tried once."""


def run(*command: str) -> tuple[int, str]:
    output = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(output):
        code = mnemo(command)
    return code, output.getvalue()


def must(*command: str) -> None:
    code, said = run(*command)
    assert code == 0, f"mnemo {' '.join(command)}: {said}"


def make_seeds(folder: Path) -> None:
    """A corpus, two runs of equal shapes with checkpoints at steps 3 and 6, a memory file, an export and results."""
    os.chdir(folder)
    os.environ["MNEMO_DATA"] = "data"
    draw = random.Random(0)
    texts = (" ".join(draw.choice(["ab", "bca", "cab", "d"]) for _ in range(300)) for _ in range(4))
    Path("text.txt").write_text("\0".join(texts))
    must("prepare", "book", "--from", "text.txt", "--tokenizer", "chars")
    for name, seed in (("a", "1"), ("b", "2")):
        must(*TRAIN, "--name", name, "--train.seed", seed)
        # As if the run had been stopped after step 6.
        shutil.rmtree(f"runs/{name}/checkpoints/step-00000009")
        write_best(Path("runs", name), 6, 1.0)
    Path("note.txt").write_text("ab bca cab")
    must("read", "runs/a", "note.txt", "--save", "text.memory")
    must("export", "runs/a", "--output", "export")
    must("eval", "runs/a", "--limit", "64")
    (result,) = Path("runs/a/results").iterdir()
    result.rename("runs/a/results/score.json")


def flip(path: str, end: int | None = None) -> Callable[[random.Random], Path]:
    """Flip one bit of a file, or of its first `end` bytes; in JSON, one that changes the content."""

    def damage(draw: random.Random) -> Path:
        file = Path(path)
        before = file.read_bytes()
        # Half of a small tensor file is its header; most bits of real files are those of tensors.
        begin = 8 + int.from_bytes(before[:8], "little") if file.suffix == ".safetensors" else 0
        while True:
            content = bytearray(before)
            content[draw.randrange(begin, end or len(content))] ^= 1 << draw.randrange(8)
            if file.suffix != ".json" or _parsed(bytes(content)) != _parsed(before):
                file.write_bytes(content)
                return file

    return damage


def _parsed(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return content


def copy(source: str, target: str) -> Callable[[random.Random], Path]:
    def damage(draw: random.Random) -> Path:
        if Path(source).is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        return Path(target)

    return damage


def swap_steps(draw: random.Random) -> Path:
    Path(NEWEST).rename("aside")
    Path(OLDER).rename(NEWEST)
    Path("aside").rename(OLDER)
    return Path(NEWEST)


def truncate(path: str) -> Callable[[random.Random], Path]:
    def damage(draw: random.Random) -> Path:
        os.truncate(path, draw.randrange(1, Path(path).stat().st_size))
        return Path(path)

    return damage


def empty(path: str) -> Callable[[random.Random], Path]:
    def damage(draw: random.Random) -> Path:
        os.truncate(path, 0)
        return Path(path)

    return damage


def remove(path: str) -> Callable[[random.Random], Path]:
    def damage(draw: random.Random) -> Path:
        Path(path).unlink()
        return Path(path)

    return damage


def attacks() -> Iterator[Attack]:
    for part in ("weights", "training", "memory"):
        yield Attack("flipped bit in checkpoint tensors, resume", flip(f"{NEWEST}/{part}.safetensors"), RESUME)
    for command in (EVAL, GENERATE):
        yield Attack(f"flipped bit in checkpoint tensors, {command[0]}", flip(f"{NEWEST}/weights.safetensors"), command)
    for command in (RESUME, EVAL):
        kind = "resume" if command is RESUME else "eval"
        for part in ("weights", "training") if command is RESUME else ("weights",):
            name = f"{part}.safetensors"
            yield Attack(f"older step's tensors, {kind}", copy(f"{OLDER}/{name}", f"{NEWEST}/{name}"), command, False)
            theirs = f"{NEWEST}/{name}".replace("/a/", "/b/")
            yield Attack(f"other run's tensors, {kind}", copy(theirs, f"{NEWEST}/{name}"), command, False)
        yield Attack(f"other run's checkpoint, {kind}", copy(NEWEST.replace("/a/", "/b/"), NEWEST), command, False)
        yield Attack(f"swapped step folders, {kind}", swap_steps, command, False)
    yield Attack("flipped bit in a corpus, resume", flip("data/book/train.bin"), RESUME)
    yield Attack("flipped bit in a corpus, resume", flip("data/book/train.documents.bin"), RESUME)
    yield Attack("flipped bit in a corpus, eval", flip("data/book/valid.bin"), EVAL)
    yield Attack("flipped bit in a memory file", flip("text.memory"), REMEMBER)
    yield Attack("flipped bit in an export", flip("export/weights.safetensors"), EVAL_EXPORT)
    yield Attack(
        "other run's weights in an export",
        copy(f"{NEWEST}/weights.safetensors".replace("/a/", "/b/"), "export/weights.safetensors"),
        EVAL_EXPORT,
        False,
    )
    for path, command in JSON_USERS:
        yield Attack("flipped bit in JSON", flip(path), command)
    yield Attack("other run's JSON", copy("runs/b/recipe.json", "runs/a/recipe.json"), RESUME, False)
    yield Attack("flipped bit in metrics, resume", flip("runs/a/metrics.jsonl", 300), RESUME)
    yield Attack("flipped bit in a result, report", flip("runs/a/results/score.json"), REPORT)
    for path, command in (*TENSOR_USERS, *JSON_USERS):
        for kind in (truncate, empty, remove):
            if kind is remove and path.endswith("best.json"):
                continue  # the newest checkpoint names the best one too
            name = {truncate: "truncated", empty: "empty", remove: "missing"}[kind]
            yield Attack(f"{name} file", kind(path), command, kind is truncate)


JSON_USERS = (
    (f"{NEWEST}/progress.json", RESUME),
    (f"{NEWEST}/progress.json", EVAL),
    ("runs/a/recipe.json", RESUME),
    ("runs/a/tokenizer.json", GENERATE),
    ("runs/a/best.json", GENERATE),
    ("data/book/header.json", EVAL),
    ("export/export.json", EVAL_EXPORT),
)
TENSOR_USERS = (
    (f"{NEWEST}/weights.safetensors", RESUME),
    (f"{NEWEST}/training.safetensors", RESUME),
    (f"{NEWEST}/weights.safetensors", EVAL),
    ("data/book/train.bin", RESUME),
    ("data/book/valid.bin", EVAL),
    ("text.memory", REMEMBER),
    ("export/weights.safetensors", EVAL_EXPORT),
)


def is_noticed(damaged: Path, code: int, said: str) -> bool:
    """Whether the command refuses the file, or names it (for a checkpoint: its folder) and continues without it."""
    named = damaged.parent.name if "step-" in damaged.parent.name else damaged.name
    return code in (1, 2) or (code == 0 and any(named in line for line in said.splitlines()))


class Count(NamedTuple):
    tried: int = 0
    noticed: int = 0


def campaign(trials: int, seed: int, folder: Path, say: Callable[[str], None]) -> dict[str, Count]:
    """Attacks tried and noticed, by name."""
    seeds, back = folder / "seeds", Path.cwd()
    seeds.mkdir()
    make_seeds(seeds)
    found: dict[str, Count] = {}
    try:
        for number, attack in enumerate(attacks()):
            for trial in range(trials if attack.is_random else 1):
                place = folder / f"{number}-{trial}"
                shutil.copytree(seeds, place)
                os.chdir(place)
                damaged = attack.damage(random.Random(f"{seed} {number} {trial}"))
                code, said = run(*attack.command)
                noticed = is_noticed(damaged, code, said)
                if not noticed:
                    say(f"not noticed: {attack.name}: {damaged} (trial {trial}, exit code {code})")
                before = found.get(attack.name, Count())
                found[attack.name] = Count(before.tried + 1, before.noticed + noticed)
                shutil.rmtree(place)
    finally:
        os.chdir(back)
    return found


def table(found: dict[str, Count]) -> str:
    total = Count(*(sum(column) for column in zip(*found.values(), strict=True)))
    lines = ["| attack | tried | noticed |", "|---|---|---|"]
    lines += [f"| {name} | {count.tried} | {count.noticed} |" for name, count in [*found.items(), ("all", total)]]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=12, help="trials of each attack that has random choices")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(args.trials, args.seed, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    print(table(found))
    return int(any(count.tried != count.noticed for count in found.values()))


if __name__ == "__main__":
    sys.exit(main())
