"""Differences that are meant: numbers that a commit has changed on purpose.

A commit that changes a number adds an entry here in the same commit. An entry applies where BASE is `after` or an
ancestor of it, and not an ancestor of `since`. One that applies and matches no difference is an error, so that the list
holds true entries only.
"""

from __future__ import annotations

from typing import NamedTuple


class Declared(NamedTuple):
    case: str
    """Pattern of case names, such as `lookahead` or `xl-*`."""
    file: str
    """Pattern of paths inside the case's folder, such as `runs/tiny/metrics.jsonl`."""
    field: str
    """Pattern of fields inside the file, as the tool prints them; `*` for all."""
    after: str
    """The last commit with the old numbers."""
    why: str
    since: str | None = None
    """The first commit whose case has this field, if an entry for earlier ones includes it."""


DECLARED: tuple[Declared, ...] = (
    Declared(
        case="lookahead",
        file="analysis/report-files/*",
        field="*",
        after="f4b474d",
        why="the page of `mnemo analyse` also saves its table of the widest heads, as wide-heads.csv",
    ),
    *(
        Declared(
            case="default-length",
            file=file,
            field="*",
            after="f94d46e",
            why="a memory length that was overridden counts in tests too: earlier, the preset's 256 slots were used",
        )
        for file in ("outputs/*-eval.json", "runs/*/results/*")
    ),
    Declared(
        case="default-length",
        file="*recipe.json",
        field="recipe.test.memory",
        after="f94d46e",
        why="the recipe of a run states the memory length of its tests",
    ),
    Declared(
        case="*",
        file="*recipe.json",
        field="settled_lengths",
        after="f94d46e",
        why="recipe.json says that its evaluations' memory lengths are those that were asked for",
    ),
    Declared(
        case="*",
        file="*.json",
        field="*.bpc",
        after="f94d46e",
        why="the JSON of train and eval also has bits per symbol",
    ),
    Declared(
        case="*",
        file="*.json",
        field="trained_memory",
        after="f94d46e",
        why="`mnemo eval` also gives the memory length of training",
    ),
    Declared(
        case="*",
        file="outputs/*-info.json",
        field="memory_in_words",
        after="f94d46e",
        why="`mnemo info` names all memory",
    ),
    Declared(
        case="*",
        file="outputs/*-info.json",
        field="hints*",
        after="f94d46e",
        why="`mnemo info` hints at memory tokens that cannot learn",
    ),
    Declared(
        case="*",
        file="*.json",
        field="checksums*",
        after="1d96a86",
        why="checkpoints, exports, runs and corpora record the checksums of their files",
    ),
    Declared(
        case="*",
        file="*/checkpoints/*/progress.json",
        field="logs*",
        after="1d96a86",
        why="checkpoints record the checksums of metrics.jsonl and timing.jsonl",
    ),
    Declared(
        case="*",
        file="*/checkpoints/*/progress.json",
        field="files.*",
        after="1d96a86",
        why="tensor files are longer by the checksum in their metadata",
    ),
    Declared(
        case="*",
        file="*.safetensors",
        field="metadata.checksum",
        after="1d96a86",
        why="tensor files hold their checksum",
    ),
    Declared(
        case="*",
        file="*.memory",
        field="metadata.checksum",
        after="1d96a86",
        why="memory files hold their checksum",
    ),
    Declared(
        case="*",
        file="*recipe.json",
        field="recipe.train.checkpoint_minutes",
        after="f94d46e",
        why="checkpoints by time: a new field, which changes no number",
    ),
    Declared(
        case="*",
        file="*/checkpoints/*/progress.json",
        field="reason",
        after="f94d46e",
        why="every checkpoint says why it was saved",
    ),
    Declared(
        case="*",
        file="outputs/*-prepare.json",
        field="files*",
        after="952b3e6",
        why="`mnemo prepare` lists the text files that it has chosen",
    ),
    Declared(
        case="*",
        file="outputs/*-prepare.json",
        field="skipped*",
        after="952b3e6",
        why="`mnemo prepare` lists the files that it has skipped",
    ),
    Declared(
        case="*",
        file="*.json",
        field="*model.logit_cap",
        after="f94d46e",
        why="soft cap of the logits: a new field, off by default",
    ),
    Declared(
        case="*",
        file="*recipe.json",
        field="recipe.train.z_loss",
        after="f94d46e",
        why="z-loss: a new field, off by default",
    ),
    Declared(
        case="*",
        file="*recipe.json",
        field="recipe.train.optimizer.*clip*",
        after="f94d46e",
        why="clip_mean and update_clip: new fields, off by default",
    ),
    Declared(
        case="*",
        file="*recipe.json",
        field="recipe.train.health*",
        after="f94d46e",
        why="thresholds of divergence: new fields, which change no number of a healthy run",
    ),
    Declared(
        case="*",
        file="*recipe.json",
        field="recipe.train.on_nan",
        after="f94d46e",
        why="rollback is the default after a divergence",
    ),
    *(
        Declared(
            case="*",
            file="*/checkpoints/*/progress.json",
            field=f"{name}*",
            after="f94d46e",
            why="checkpoints also hold their health, the course of the losses and the history of rollbacks",
        )
        for name in ("course", "norms", "health", "rollbacks")
    ),
    Declared(
        case="lookahead*",
        file="*",
        field="*first_bias",
        after="b0b46ce",
        why="how the bias of positions ahead starts: a new field, which changes no number",
    ),
    Declared(
        case="lookahead-dropout",
        file="*",
        field="*",
        after="b0b46ce",
        why="each direction of attention draws its own dropout mask of the sinusoids, as in the published code",
    ),
    Declared(
        case="sizes-and-exits",
        file="outputs/10-estimate.json",
        field="layouts*.memory.*",
        after="b0b46ce",
        why="LaMemo in training projects the sinusoids of each direction by itself: more activations",
    ),
    Declared(
        case="associative",
        file="*",
        field="*",
        after="b0b46ce",
        why="a new memory, which earlier commits refuse",
    ),
    Declared(
        case="adaptive-softmax",
        file="back/recipe.json",
        field="source.decoding",
        after="1f5d53ce",
        why="runs that are converted from TransfoXL write text as transformers 4 does, and say so",
    ),
    Declared(
        case="associative",
        file="*",
        field="*row_size",
        after="688a8cd9",
        why="the size of rows that write to a bounded memory: a new field, which changes no number",
        since="ae0c6e2",
    ),
    Declared(
        case="*",
        file="*.json",
        field="no_memory",
        after="d77775d6",
        why="the JSON of `mnemo eval` also says if the memory was off",
    ),
    Declared(
        case="*",
        file="*.json",
        field="limit",
        after="8cae805d",
        why="the JSON of `mnemo eval` also says how many tokens were to be scored",
    ),
    Declared(
        case="context",
        file="outputs/*-info.json",
        field="*",
        after="502ef940",
        why="the work of a step counts the context that each segment encodes again",
    ),
    Declared(
        case="sizes-and-exits",
        file="outputs/*-info.json",
        field="activation_bytes.layers_work",
        after="502ef940",
        why="the sum of a step's work is taken in another order",
    ),
    *(
        Declared(
            case=case,
            file="outputs/*-info.json",
            field="memory_in_words",
            after="d77775d6",
            why="recurrent layers are named by their state",
            since="d998b2f3",
        )
        for case in ("lstm", "qrnn")
    ),
    Declared(
        case="sizes-and-exits",
        file="outputs/*-estimate.json",
        field="*",
        after="89ec50c0",
        why="another share of the GPU's peak is expected, and the number of segments in a step is a new field",
    ),
    Declared(
        case="xl-modern",
        file="*",
        field="*",
        after="60c0ca7",
        why="penalties of activations are means over valid rows: padding behind documents counted before",
    ),
)
