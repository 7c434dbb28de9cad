"""Everything that fine-tuning a model with memory depends on: the model, the task, the curriculum, the optimizer."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from mnemo.errors import MnemoError, require_not_negative, require_positive
from mnemo.recipes.option_types import Several

MemoryKind = Literal["tokens", "associative"]
MOST_STEPS = 100_000
"""Steps if only --minutes ends training"""
USUAL_MINUTES = 20.0
USUAL_SEGMENTS = ("1", "2", "4", "8")


class Stage(NamedTuple):
    """Samples of a number of segments."""

    segments: int
    tokens: int
    """Tokens per segment"""

    @property
    def length(self) -> int:
        return self.segments * self.tokens

    @staticmethod
    def parse(text: str, tokens: int) -> Stage:
        """`4` is four segments of `tokens` tokens, `4x128` four segments of 128."""
        found = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
        if found is None or not int(found[1]) or found[2] == "0":
            raise MnemoError(f"'{text}' is no stage: write a number of segments, such as 4, or 4x128 with their tokens")
        return Stage(int(found[1]), int(found[2] or tokens))

    def __str__(self) -> str:
        return f"{self.segments}x{self.tokens}"


def usual_stages(longest_story: int, segment: int) -> tuple[str, ...]:
    """Return 1, 2, 4 and 8 segments, first of as few tokens as a task's stories allow, then of `segment` tokens."""
    alone = 32 * math.ceil(longest_story / 32)
    several = 16 * math.ceil(alone / 24)  # two thirds: two segments hold a story, and one does not
    if 2 * alone > segment:  # nearly as long as a whole segment
        return USUAL_SEGMENTS
    return (f"1x{alone}", *(f"{segments}x{several}" for segments in USUAL_SEGMENTS[1:]), *USUAL_SEGMENTS)


class Evaluation(NamedTuple):
    """One length of the final evaluation."""

    stage: Stage
    samples: int

    @staticmethod
    def parse(text: str, tokens: int, samples: int) -> Evaluation:
        """`128` is a stage with the usual number of samples, `2048:50` one with 50."""
        length, colon, count = text.partition(":")
        if colon and not (count.isdecimal() and int(count)):
            raise MnemoError(f"'{text}' is no test: write a stage, such as 128, or 128:50 with its samples")
        return Evaluation(Stage.parse(length, tokens), int(count) if colon else samples)


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Settings of `mnemo tune`: the model, its memory, the curriculum and the measurements."""

    model: Annotated[str, tyro.conf.Positional]
    """A causal language model: a folder in Hugging Face's format, OWNER/NAME of its hub, or a GGUF file, whose weights
    are dequantised."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("tuned")
    """Folder for the model, its card, checkpoints, measurements and figures."""
    task: str = "qa1"
    """Task of BABILong: qa1 to qa5; qa1 and qa2 need no data."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder written by mnemo prepare babilong; if unset, stories and sentences are generated."""
    background: int = 20_000_000
    """Characters of books to use at most in each split."""
    memory: MemoryKind = "associative"
    """An associative memory in every layer (ARMT), or memory tokens alone (RMT), which learn more slowly."""
    bounded: Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: limited)")] = True
    """Associative memory: writing is limited, since the memory would grow exponentially over hundreds of segments.
    --no-bounded removes the limit, as published."""
    tokens: int = 16
    """Memory tokens; 0 trains the model without memory."""
    start: Literal["random", "overlap"] = "random"
    """First weights of memory tokens: random as published, or such that an untrained memory does no harm."""
    start_text: str | None = None
    """First weights of memory tokens: the embeddings of this text, such as a question about what to remember."""
    attend_previous: bool = False
    """Tokens also attend to the tokens of the previous segment, without gradient."""
    segment: int = 512
    """Tokens per segment, without memory tokens."""
    stages: Several[str] = ()
    """Curriculum: numbers of segments; 4x128 means four segments of 128 tokens. If unset: 1, 2, 4 and 8, first with
    segments that are just long enough for a story: their steps take a fraction of the time."""
    promote: float = 0.93
    """Accuracy on held-out samples that starts the next stage."""
    mix: float = 0.3
    """Share of batches with the length of an earlier stage, so that it is not forgotten."""
    far: float = 0.8
    """Share of training samples whose facts all lie before the last segment. With facts placed at random, many answers
    are in the last segment, and the model learns to guess the others before it learns to use its memory. Held-out and
    test samples have facts anywhere."""
    recall: float = 0.0
    """Share of the far samples in which the model also writes all facts, before the question. Memory tokens did not
    learn faster with it."""
    book_steps: float = 0.1
    """Share of steps on text of the training books, with a loss on its tokens. With answers alone (0) the model forgets
    how to continue a text, most of all with memory."""
    bptt: int | None = 7
    """Earlier segments that a gradient reaches; None for all of them, with which two runs did not learn samples of 16
    segments."""
    lora: int = 0
    """Rank of LoRA weights, which are trained instead of the model's; 0 trains all weights."""
    freeze: bool = False
    """Train only the parameters of the memory, and save them without the model."""
    rate: float = 2e-4
    """Learning rate after warm-up."""
    memory_rate: float = 1.0
    """Learning rate of the memory's own parameters, as a multiple of --rate."""
    warmup: int = 40
    """Steps in which the learning rate rises."""
    cooldown: float = 0.4
    """Last part of the steps or minutes in which the learning rate falls to zero."""
    batch: int = 32
    """Samples per step, a multiple of --micro-batch."""
    micro_batch: int = 32
    """Samples in memory at a time; all have the same number of segments. Stages with shorter segments than the last
    one have up to four times as many."""
    steps: int | None = None
    """Number of steps."""
    minutes: float | None = None
    """Minutes of training over all calls, without the final evaluation; 20 if --steps is unset, too."""
    pause_after: float | None = None
    """Minutes after which this call writes a checkpoint and stops; --resume continues."""
    resume: bool = False
    """Continue from the last checkpoint in --out."""
    check_every: int = 25
    """Steps between measurements of the accuracy on held-out samples."""
    check_samples: int = 128
    """Held-out samples of a measurement."""
    save_every: int | None = None
    """Steps between checkpoints; if unset, only when training pauses or ends."""
    test: Several[str] = ()
    """Lengths of the final evaluation, like --stages; 2048:50 tests 50 samples of 2048 segments. If unset, the stages,
    and up to four times the last one."""
    test_samples: int = 500
    """Samples of each length in the final evaluation, if --test gives no number."""
    test_batch: int | None = None
    """Samples at a time in the final evaluation; if unset, those of --micro-batch."""
    book_loss: bool = False
    """Also measure the loss on text of held-out books before and after training, with memory and in separate
    segments."""
    precision: Literal["bf16", "fp32"] = "fp32"
    """bf16: computation in bfloat16, with weights and optimizer in single precision."""
    compiled: Annotated[bool, tyro.conf.arg(name="compile")] = False
    """Compile the layers, and reading and writing of associative memories, once with torch.compile."""
    plain_segments: int = 1
    """Samples of up to this many segments keep all activations, which is faster; longer ones compute them again."""
    device: str = "auto"
    """cpu, cuda or auto."""
    zero_shot: bool = False
    """Only test the model as it is, without training and memory: it generates an answer to a prompt with an instruction
    and two examples. The lengths of --test are those of the whole prompt."""
    speed: bool = False
    """Only measure tokens per second with memory and without."""
    seed: int = 0
    """Random seed of the samples and of the memory's first weights."""

    def __post_init__(self) -> None:
        least = {"segment": 1, "batch": 1, "micro_batch": 1, "check_every": 1, "check_samples": 1, "test_samples": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise MnemoError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least {value}")
        if self.test_batch is not None and self.test_batch < 1:
            raise MnemoError(f"--test-batch {self.test_batch} must be at least 1")
        if self.start_text is not None and not self.tokens:
            raise MnemoError("--start-text needs at least one memory token")
        if not self.zero_shot and not self.speed:
            self._check_training()
        _ = self.tests

    def _check_training(self) -> None:
        if self.batch % self.micro_batch:
            raise MnemoError(f"--batch {self.batch} must be a multiple of --micro-batch {self.micro_batch}")
        if not 0 <= self.mix < 1 or not all(
            0 <= share <= 1 for share in (self.cooldown, self.promote, self.far, self.recall)
        ):
            raise MnemoError("--mix, --cooldown, --promote, --far and --recall are shares from 0 to 1")
        if not 0 <= self.book_steps < 1:
            raise MnemoError(f"--book-steps {self.book_steps} is a share from 0 to below 1: other steps train answers")
        for name in ("rate", "memory_rate", "steps", "minutes", "save_every"):
            require_positive(f"--{name.replace('_', '-')}", getattr(self, name))
        for name in ("tokens", "lora", "bptt", "warmup"):
            require_not_negative(f"--{name.replace('_', '-')}", getattr(self, name))
        if self.pause_after is not None and not 0 <= self.pause_after < math.inf:
            raise MnemoError(f"--pause-after {self.pause_after} must be minutes from 0 on")
        if not 0 <= self.seed < 2**32:  # numpy's limit
            raise MnemoError(f"--seed {self.seed} must be from 0 to {2**32 - 1}")
        if self.freeze and (self.lora or not self.tokens):
            raise MnemoError("--freeze trains the memory alone: leave out --lora, and use at least one memory token")
        _ = self.curriculum

    @property
    def kind(self) -> MemoryKind:
        """The kind of memory; without memory tokens there is none to write an associative memory."""
        return self.memory if self.tokens else "tokens"

    @property
    def curriculum(self) -> list[Stage]:
        return [Stage.parse(text, self.segment) for text in self.stages or USUAL_SEGMENTS]

    @property
    def tests(self) -> list[Evaluation]:
        """The lengths of the final evaluation and their numbers of samples."""
        if self.test:
            return [Evaluation.parse(text, self.segment, self.test_samples) for text in self.test]
        known = {stage for stage in self.curriculum if stage.tokens == self.segment}
        most = max((stage.segments for stage in known), default=1)
        stages = sorted(known | {Stage(most * factor, self.segment) for factor in (1, 2, 4)})
        return [Evaluation(stage, self.test_samples) for stage in stages]

    @property
    def time_limit(self) -> float | None:
        """Minutes of training; None if only steps end it."""
        return USUAL_MINUTES if self.minutes is None and self.steps is None else self.minutes

    @property
    def max_steps(self) -> int:
        return MOST_STEPS if self.steps is None else self.steps
