"""Convert weights as the flags of `mnemo convert` ask, and score the converted model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnemo.cli import console
from mnemo.cli.console import STDIN, piped_text
from mnemo.cli.convert import Args, published_arguments
from mnemo.cli.run_arguments import UNKNOWN_CORPUS, format_loss
from mnemo.data import corpus as corpora
from mnemo.data.corpus import Corpus, Split
from mnemo.data.prepare import load
from mnemo.data.tokenizers import WordTokenizer
from mnemo.errors import MnemoError
from mnemo.evaluation.perplexity import evaluate
from mnemo.evaluation.score import Score
from mnemo.interop.convert.load import ConvertedModel, UserOptions, load_model
from mnemo.interop.convert.save import unknown_corpus, write_published, write_run
from mnemo.recipes.recipe import EvalConfig
from mnemo.recipes.transformer_xl import ENWIK8_SYMBOLS, LM1B_WORDS, TEXT8_SYMBOLS, WIKITEXT103_WORDS
from mnemo.session.text_run import encode, encode_file
from mnemo.storage.run_folder import open_run

PUBLISHED_SIZES = {
    WIKITEXT103_WORDS: "wikitext-103",
    LM1B_WORDS: "lm1b",
    ENWIK8_SYMBOLS: "enwik8",
    TEXT8_SYMBOLS: "text8",
}


def convert(args: Args) -> int:
    corpus = _corpus(args)
    with console.progress(f"loading {args.source}", 1, unit="source") as bar:
        model = load_model(args.source, _options(args))
        bar.advance()
    model = _with_tokenizer(model, corpus)
    split = _split(args, model, corpus)
    if args.to != "mnemo":
        write_published(model, args.to, args.dest)
        return _finish(args, model, None)
    known = args.corpus or (args.eval if args.eval and not _is_text(args.eval) else None)
    name = known or PUBLISHED_SIZES.get(model.config.vocab_size, UNKNOWN_CORPUS)
    write_run(
        model,
        args.dest,
        source=args.source,
        corpus=name,
        corpus_info=unknown_corpus(name, model.tokenizer, model.config.vocab_size),
    )
    return _finish(args, model, None if split is None else _score(args, split))


def _is_text(name: str) -> bool:
    return name == STDIN or Path(name).is_file()


def _corpus(args: Args) -> Corpus | None:
    if args.eval is not None and not _is_text(args.eval):
        return load(args.eval, show=console.progress)
    return None if args.corpus is None or corpora.find(args.corpus) is None else Corpus.open(args.corpus)


def _split(args: Args, model: ConvertedModel, corpus: Corpus | None) -> Split | None:
    """The text to score: a split of a corpus, or a file in the model's vocabulary."""
    if args.eval is None:
        return None
    if corpus is not None and not _is_text(args.eval):
        return corpus.split(args.split)
    if model.tokenizer is None:
        raise MnemoError(f"{args.eval} is text, but the weights have no vocabulary: give --vocab or --corpus")
    if args.eval == STDIN:
        text = piped_text()
        return Split("stdin", encode(model.tokenizer, text, "the text from the pipe").numpy(), None, len(text), 0, 0)
    path = Path(args.eval)
    return Split(path.name, encode_file(model.tokenizer, path).numpy(), None, path.stat().st_size, 0, 0)


def _options(args: Args) -> UserOptions:
    return UserOptions(
        arguments=published_arguments(args), config=args.config, vocab=args.vocab, without_vocab=args.no_vocab
    )


def _with_tokenizer(model: ConvertedModel, corpus: Corpus | None) -> ConvertedModel:
    """The model with the corpus's tokenizer if it has none; an error if both have different symbols."""
    if corpus is None:
        return model
    if corpus.vocab_size != model.config.vocab_size:
        raise MnemoError(
            f"corpus '{corpus.name}' has another vocabulary: {corpus.vocab_size:,} symbols, and the weights "
            f"{model.config.vocab_size:,}"
        )
    if model.tokenizer is None:
        note = f"no vocabulary came with the weights: taken as that of corpus '{corpus.name}'"
        return replace(model, tokenizer=corpus.tokenizer, notes=(*model.notes, note))
    mine, theirs = _symbols(model.tokenizer), _symbols(corpus.tokenizer)
    if mine != theirs:
        at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), 0)
        raise MnemoError(
            f"corpus '{corpus.name}' has other symbols than the model: id {at} is {theirs[at]!r} there and "
            f"{mine[at]!r} here"
        )
    return model


def _symbols(tokenizer: Any) -> Any:
    if isinstance(tokenizer, WordTokenizer):
        return tokenizer.words
    return [str(tokenizer.to_json())] if tokenizer.unit == "bpe" else tokenizer.symbols


def _score(args: Args, split: Split) -> Score:
    opened = open_run(args.dest, device=args.device)
    return evaluate(
        opened.model,
        split,
        EvalConfig(batch=args.batch, limit=args.limit),
        segment=opened.recipe.train.segment,
        start=args.start or opened.start,
        progress=console.progress,
    )


def _finish(args: Args, model: ConvertedModel, score: Score | None) -> int:
    summary = {
        "dest": str(args.dest),
        "to": args.to,
        "format": model.format,
        "parameters": sum(tensor.numel() for tensor in model.weights.values()),
        "tokenizer": None if model.tokenizer is None else model.tokenizer.unit,
        "notes": list(model.notes),
        "score": None if score is None else score.to_json() | {"starts_from": args.start or model.start},
    }
    if args.json:
        console.print_json(summary)
        return 0
    for note in model.notes:
        print(note)
    vocab = f"{model.config.vocab_size:,} {model.tokenizer.unit}s" if model.tokenizer else "no tokenizer (see --vocab)"
    print(f"wrote {args.dest}: {summary['parameters']:,} parameters, {vocab}")
    if score is not None:
        print(_protocol(score, model, args.start or model.start))
    return 0


def _protocol(score: Score, model: ConvertedModel, start: str) -> str:
    unit = model.tokenizer.unit if model.tokenizer else "word"
    settings: Mapping[str, Any] = {
        "rows": score.batch,
        "segment": score.segment,
        "memory": score.memory,
        "clamp": score.clamp or "none",
        "same length": "on" if score.same_length else "off",
    }
    how = ", ".join(f"{name} {value}" for name, value in settings.items())
    begins = "full of zeros" if start == "zeros" else "empty"
    return (
        f"{score.split}: {format_loss(score.loss, unit)} over {score.tokens:,} tokens ({how}, memory starts {begins})"
    )
