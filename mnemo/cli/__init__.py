"""The `mnemo` command: one module per verb, imported only when that verb is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from mnemo import __version__
from mnemo.errors import CheckFailed, MnemoError, one_line, shorten, unknown


class Verb(NamedTuple):
    module: str
    help: str


VERBS = {
    "demo": Verb("mnemo.cli.demo", "train, measure and sample small memory transformers, in minutes"),
    "prepare": Verb("mnemo.cli.prepare", "download or load a corpus and turn it into token ids"),
    "train": Verb("mnemo.cli.train", "train on your own text, or a preset; resume or fine-tune a run"),
    "tune": Verb("mnemo.cli.tune", "give a Hugging Face model a memory and train it to answer from long texts"),
    "sweep": Verb("mnemo.cli.sweep", "compare memories on one text over several seeds, with verdicts and a report"),
    "watch": Verb("mnemo.cli.watch", "show a run's curves while another process trains it"),
    "eval": Verb("mnemo.cli.eval", "score a run: bits per symbol and perplexity, at any memory length"),
    "generate": Verb("mnemo.cli.generate", "write text with a run, from a prompt or from a saved memory"),
    "chat": Verb("mnemo.cli.chat", "type text and a run goes on writing, while its memory fills"),
    "studio": Verb("mnemo.cli.studio", "pages in the browser: playground, memory, runs with live curves, experiments"),
    "serve": Verb("mnemo.cli.serve", "serve models over HTTP, as OpenAI's API does, with sessions that remember"),
    "read": Verb("mnemo.cli.read", "read a text once and save the model's memory of it"),
    "analyse": Verb("mnemo.cli.analyse", "show where memory helps on a text, and the attention, as a page"),
    "runs": Verb("mnemo.cli.runs", "list, remove and rename runs"),
    "info": Verb("mnemo.cli.info", "show parameters, FLOPs, state size and memory plan of a preset or run"),
    "estimate": Verb("mnemo.cli.estimate", "estimate memory, speed, time and energy of training on given GPUs"),
    "parity": Verb("mnemo.cli.parity", "compare with reference files of the published implementations"),
    "convert": Verb("mnemo.cli.convert", "convert published weights (Hugging Face, PyTorch, TensorFlow) and back"),
    "bench": Verb("mnemo.cli.bench", "measure speed against a plain version of the published code"),
    "verify": Verb("mnemo.cli.verify", "check that runs, corpora and memory files are as they were written"),
    "export": Verb("mnemo.cli.export", "write a run's weights, recipe and tokenizer to one folder"),
    "reproduce": Verb("mnemo.cli.reproduce", "repeat an experiment of the papers: measurements, verdict, figures"),
    "report": Verb("mnemo.cli.report", "write an HTML page that compares the curves and numbers of runs"),
}
LONGEST_MESSAGE = 2000
EXIT_CHECK_FAILED, EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED, EXIT_PIPE = 1, 2, 70, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every failure becomes one line on stderr."""
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        return _code(stop)
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_PIPE
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except CheckFailed as error:
        return _fail(f"check failed: {error}", EXIT_CHECK_FAILED)
    except MnemoError as error:
        return _fail(f"error: {error}", EXIT_USAGE)
    except OSError as error:
        return _fail(f"error: {_describe(error)}", EXIT_USAGE)
    except MemoryError:
        return _fail("error: not enough memory", EXIT_USAGE)
    except Exception as error:
        if is_out_of_memory(error):
            return _fail(f"error: not enough memory: {one_line(error)}", EXIT_USAGE)
        return _report_bug(error)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if argv[0] == "--version":
        print(_versions())
        return 0
    verb, *rest = argv
    if verb not in VERBS:
        raise unknown("verb", verb, VERBS)
    return _run_verb(verb, rest)


def _versions() -> str:
    """One line for a bug report; torch's version is taken from its package, because importing it takes seconds."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch = f"torch {version('torch')}"
    except PackageNotFoundError:
        torch = "no torch"
    system = f"{platform.system()} {platform.machine()}"
    return f"mnemo {__version__}, {torch}, Python {platform.python_version()}, {system}"


def _run_verb(verb: str, argv: list[str]) -> int:
    from mnemo.cli import arguments

    argv = arguments.import_files(argv)
    module = importlib.import_module(VERBS[verb].module)
    own_main = getattr(module, "main", None)
    if own_main is not None:
        return own_main(argv)
    args = arguments.parse(verb, module, argv)
    return module.run(args)


def _help() -> str:
    lines = [f"  {name:<10}{verb.help}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: mnemo VERB [options]",
            "",
            "Memory transformers: language models that carry a state from one segment of text to the next.",
            "",
            *lines,
            "",
            "mnemo VERB --help shows a verb's options; mnemo --version shows the versions of mnemo, torch and Python.",
            "mnemo VERB ... --import my_memory.py uses a memory of your own (docs/adding-memory.md).",
        ]
    )


def _code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    return _fail(str(stop.code), EXIT_CHECK_FAILED)


def _fail(message: str, code: int) -> int:
    """Print one line on stderr; text from a file is shortened, and its control characters are replaced."""
    line = shorten(" ".join(message.splitlines()), LONGEST_MESSAGE)
    with suppress(OSError):  # the terminal may be closed
        print("mnemo: " + "".join(letter if letter.isprintable() else "?" for letter in line), file=sys.stderr)
    return code


def _describe(error: OSError) -> str:
    if error.strerror is None:
        return str(error) or type(error).__name__
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return ": ".join([error.strerror, *names])


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch ran out of memory: it has an error class for GPUs, but not for the CPU."""
    said = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in said or "out of memory" in said)


def _report_bug(error: Exception) -> int:
    if os.environ.get("MNEMO_TRACEBACK") == "1":
        import traceback

        traceback.print_exception(error)
        return EXIT_BUG
    hint = "MNEMO_TRACEBACK=1 shows the traceback"
    return _fail(f"internal error: {type(error).__name__}: {error} ({hint})", EXIT_BUG)


def _silence_stdout() -> None:
    """Redirect stdout after the reader has closed the pipe; else Python reports it again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
