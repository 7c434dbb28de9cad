"""The cases: tiny runs that together use every mechanism, each a list of command lines.

Cases use the command line and the layout of run folders only, never modules of mnemo: these stay the same while
modules move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

RUN = "runs/tiny"
STEPS = 24


@dataclass(frozen=True)
class Command:
    """One call of `mnemo`, with the exit code that is right for it."""

    arguments: tuple[str, ...]
    exit: int = 0


@dataclass(frozen=True)
class Remove:
    """Remove a file or a folder of the case."""

    path: str


@dataclass(frozen=True)
class PublicCalls:
    """Call a run's model and a decoder through the public interface; save their outputs and states."""

    run: str
    open_segment: bool = True
    """Save the decoder's state inside a segment, not between two."""


Step = Command | Remove | PublicCalls


@dataclass(frozen=True)
class Case:
    name: str
    about: str
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "steps": [{"kind": type(step).__name__, **asdict(step)} for step in self.steps]}


def command(text: str, exit: int = 0) -> Command:
    """A command from its words, which contain no blanks."""
    return Command(tuple(text.split()), exit)


def prepare(tokenizer: str) -> Command:
    return command(f"prepare corpus --from text.txt --tokenizer {tokenizer} --json")


SMALL = (
    "--model.num-layers 2 --model.dim 16 --model.num-heads 2 --model.head-dim 8 --model.inner-dim 32 "
    "--train.batch 4 --train.log-every 3 --train.eval-every 12 --train.checkpoint-every 12 --train.device cpu "
    f"--train.schedule.warmup 4 --train.optimizer.lr 0.03 --train.segment 8 --train.steps {STEPS} "
)
# A test memory that is given counts at every commit: earlier ones took the preset's even if the memory was overridden.
TEST_MEMORY = "--test.memory 256 "
ON_TEXT = f"--data.corpus corpus --evaluation.limit 400 --evaluation.batch 2 --test.batch 2 {TEST_MEMORY}"
# Separate tables and large first weights: else a model of so few steps would write nothing but blanks.
ON_TEXT += "--model.embedding.no-tie-weights --model.init.std 0.3"


def train(options: str) -> Command:
    return command(f"train tiny-bytes --name tiny --json {SMALL} {ON_TEXT} {options}")


def use(run: str = RUN, open_segment: bool = True) -> tuple[Step, ...]:
    """Every use of a trained run on text: scores, greedy and sampled text, a memory file, an export."""
    return (
        command(f"eval {run} --split test --json"),
        command(f"eval {run} --which last --batch 1 --segment 6 --limit 100 --json"),
        command(f"generate {run} --prompt-file page.txt --temperature 0 --tokens 24 --json"),
        command(f"generate {run} --top-k 8 --top-p 0.9 --seed 3 --continuations 2 --tokens 24 --json"),
        command(f"read {run} page.txt --save page.memory --json"),
        command(f"read {run} page.txt --memory page.memory --save twice.memory --json"),
        command(f"generate {run} --memory twice.memory --temperature 0 --tokens 24 --no-save"),
        command(f"export {run} --output exported --json"),
        command(f"info {run} --json"),
        PublicCalls(run, open_segment),
    )


def text_case(name: str, about: str, options: str, tokenizer: str = "chars", more: Sequence[Command] = ()) -> Case:
    return Case(name, about, (prepare(tokenizer), train(options), *use(), *more))


DROPOUT = " ".join(
    f"--model.dropout.{site} 0.1"
    for site in ("word", "input", "positions", "qkv", "attention", "projection", "inner", "feed-forward", "output")
)

EVALUATIONS = (
    command(f"eval {RUN} --memory 20 --segment 5 --batch 2 --clamp 9 --json"),
    command(f"eval {RUN} --sliding-window --limit 60 --json"),
    command(f"eval {RUN} --sweep-memory 0,4,16 --limit 200 --json"),
    command(f"eval {RUN} --find-length --limit 200 --json"),
    command(f"eval {RUN} --fit-temperature valid --limit 200 --json"),
    command(f"eval {RUN} --no-memory --by-position --documents reset --json"),
    command(f"eval {RUN} --start zeros --same-length --limit 200 --json"),
)

ADAPTIVE = (
    prepare("words"),
    train(
        "--model.memory.long.length 12 --model.embedding.cutoffs 20 60 --model.embedding.div-val 2 "
        "--model.embedding.tie-weights --model.embedding.tie-projections False True True"
    ),
    # Memories with an open segment cannot be saved for adaptive embeddings; page.txt has six whole segments of words.
    *use(open_segment=False),
    command(f"convert {RUN} converted --to hf --json"),
    command("convert converted back --json"),
)

CRASHED = (
    prepare("chars"),
    train(f"--model.memory.long.length 12 {DROPOUT} --train.eval-every {STEPS} --data.rotate"),
    # The run folder of a process that ended after the checkpoint of step 12.
    Remove(f"{RUN}/checkpoints/step-{STEPS:08d}"),
    Remove(f"{RUN}/best.json"),
    command(f"train --resume {RUN} --json"),
    *use(),
)

TASK = (
    command(
        f"train rmt-copy-seg24-m24 --name tiny --json {SMALL} --data.task.symbols 4 --data.task.train 200 "
        "--data.task.valid 40 --data.task.test 40 --train.segment 4 --model.tokens.num 4 --evaluation.batch 20"
    ),
    command(f"eval {RUN} --json"),
    command(f"eval {RUN} --split valid --published --json"),
    command(f"export {RUN} --output exported --json"),
    command(f"info {RUN} --json"),
    PublicCalls(RUN),
)

XL = "--model.memory.long.length 12"
DEFAULT_LENGTH = (
    prepare("chars"),
    # --test.memory is not given: the length of the test is that of training, or, at earlier commits, the preset's.
    command(
        f"train tiny-bytes --name tiny --json {SMALL} {ON_TEXT.replace(TEST_MEMORY, '')} --model.memory.long.length 12"
    ),
    command(f"eval {RUN} --split test --json"),
)

MISTAKES = (
    command("frobnicate", 2),
    command("train no-such-preset", 2),
    command("train tiny-bytes --model.num-layers none", 2),
    command("eval runs/missing", 2),
    command("prepare", 2),
    command("info enwik8-base --json"),
    command("info long-enwik8-4-interleaved --json"),
    command("info rmt-wikitext103-seg50-m10-bptt2 --json"),
    command("estimate wikitext103-large --gpus 8 --gpu h100 --json"),
    command("estimate lamemo-enwik8 --gpus 64 --batch 512 --precision bf16 --json"),
)

COMPRESSIVE = (
    "--model.memory.long compressive --model.memory.long.length 12 --model.memory.long.compressed 6 "
    "--model.memory.long.ratio 3"
)

CASES = (
    Case(
        "default-length",
        "evaluation without a given memory length, of a model whose own was overridden",
        DEFAULT_LENGTH,
    ),
    text_case("xl-dropout", "Transformer-XL with dropout at every site", f"{XL} {DROPOUT}", more=EVALUATIONS),
    text_case(
        "xl-modern",
        "pre-norm, rms norms, qk norms, locked dropout, adamw, averaged weights, accumulation, recomputation",
        f"{XL} --model.norm pre --model.final-norm --model.norm-kind rms --model.qk-norm "
        "--model.activation squared_relu --model.activation-penalty 1 --model.temporal-penalty 1 "
        "--model.dropout.locked --model.dropout.input 0.2 --model.dropout.output 0.2 --model.init.residual scaled "
        "--train.optimizer.kind adamw --train.optimizer.weight-decay 0.1 --train.average average "
        "--train.average.start 12 --train.average.kind ema --train.average.decay 0.8 --train.accumulate 2 "
        "--train.recompute layer --data.documents reset",
    ),
    text_case(
        "xl-varied",
        "varied segment lengths, biases per layer, clamped distances, loss on half a segment, sgd, plateau schedule",
        f"{XL} --model.positions.biases-per-layer --model.same-length --model.positions.clamp 10 --train.vary-segment "
        "--train.loss half --train.optimizer.kind sgd --train.optimizer.momentum 0.9 --train.schedule.kind plateau "
        "--train.optimizer.scale-lr-by-length --train.optimizer.embedding-lr-factor 0.5",
        tokenizer="bytes",
    ),
    text_case(
        "lookahead",
        "look-ahead with a memory longer than the segment",
        f"--model.memory.long lookahead --model.memory.long.length 20 {DROPOUT} --model.dropout.positions 0",
        more=(command(f"analyse {RUN} page.txt --out analysis --json"),),
    ),
    text_case(
        "lookahead-dropout",
        "look-ahead with dropout on the sinusoids",
        f"--model.memory.long lookahead --model.memory.long.length 20 {DROPOUT}",
    ),
    text_case("compressive", "compressive memory, learned convolution", COMPRESSIVE),
    text_case(
        "compressive-used",
        "compressive memory that keeps the most used rows",
        f"{COMPRESSIVE} --model.memory.long.function most_used",
    ),
    text_case(
        "infinite",
        "infinity-former with sticky samples and a gate",
        "--model.memory.long infinite --model.memory.long.length 12 --model.memory.long.basis 16 "
        "--model.memory.long.block 8 --model.memory.long.samples 16 --model.memory.long.sticky "
        "--model.memory.long.gate layer",
    ),
    text_case(
        "tokens-bptt",
        "memory tokens with gradient over two earlier segments, sliding windows",
        "--model.tokens memory-tokens --model.tokens.num 3 --model.memory.long.length 0 --train.bptt 2 "
        "--model.dropout.attention 0.1",
    ),
    text_case(
        "tokens-tumbling",
        "memory tokens beside Transformer-XL's memory, tumbling windows, replayed activations",
        f"{XL} --model.tokens memory-tokens --model.tokens.num 3 --model.tokens.memory-sees-cache --train.bptt 2 "
        "--train.bptt-window tumbling --train.bptt-memory replay",
    ),
    text_case(
        "associative",
        "associative memory in half of the layers, gradient over two earlier segments",
        "--model.memory.long associative --model.memory.long.key-dim 8 --model.memory.long.heads 2 "
        "--model.memory.num-long 1 --model.memory.short.length 6 --model.tokens write-tokens --model.tokens.num 3 "
        "--train.bptt 2",
    ),
    text_case(
        "plan",
        "a plan of several memories with long and short lengths",
        f"{COMPRESSIVE} --model.num-layers 4 --model.memory.short.length 4 --model.memory.num-long 2",
        more=(command(f"eval {RUN} --memory 24 --json"),),
    ),
    text_case(
        "muon-rotary-gate",
        "muon, rotary positions, head gate",
        f"{XL} --train.optimizer.kind muon --train.optimizer.lr 0.02 --train.optimizer.momentum 0.95 "
        "--model.positions rotary --model.head-gate --model.norm pre --model.final-norm",
    ),
    text_case(
        "gate-relative",
        "relative positions with head gate and post-norm",
        f"{XL} --model.head-gate --model.positions.shared-projection --model.embedding.tie-weights",
    ),
    Case("adaptive-softmax", "words with an adaptive softmax of three bins; its weights converted and back", ADAPTIVE),
    text_case(
        "lstm",
        "LSTM layers",
        "--model.memory.long lstm --model.memory.long.width 12 --model.positions no-positions "
        "--model.dropout.projection 0.1",
    ),
    text_case(
        "qrnn",
        "a QRNN layer with zoneout below a Transformer-XL layer",
        f"{XL} --model.memory.short qrnn --model.memory.short.zoneout 0.1 --model.memory.num-long 1",
    ),
    text_case(
        "context",
        "no memory: a context that is encoded again, Shaw's positions",
        "--model.memory.long.length 0 --model.positions shaw --train.context 6",
    ),
    Case(
        "sentences",
        "shuffled sentences, then fine-tuning from the best weights",
        (
            prepare("bytes"),
            train("--data.order sentences --model.memory.long.length 0"),
            command(f"train --from {RUN} --name tuned --json --train.steps 6 --train.seed 5"),
            *use("runs/tuned"),
        ),
    ),
    Case("task-copy", "a task: copy in three segments, with memory tokens", TASK),
    Case("resumed", "a run that ended half-way and was resumed", CRASHED),
    Case("sizes-and-exits", "exit codes of wrong calls; sizes and costs of published models", MISTAKES),
)
