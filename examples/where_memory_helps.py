"""Show where the memory of earlier segments helps on a text, byte by byte.

    python examples/where_memory_helps.py                          a short story, and the model that comes with Mnemo
    python examples/where_memory_helps.py mybook.txt --run NAME    your text, a model that you have trained

Every byte is predicted twice: with the memory, and with the memory emptied before its segment. The difference is the
gain in bits. You will see the mean gain, the gain by position in the segment, the words that gain most (names that
occurred in earlier segments), and the end of the text, coloured. `mnemo analyse` writes the same as a page.
"""

import argparse
import re
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

import mnemo
from mnemo.analysis import gain_from_memory

STORY = Path(mnemo.__file__).parent / "serving" / "studio" / "assets" / "playground" / "example.txt"


def main(text: Path, run: str, limit: int) -> None:
    opened = mnemo.open_run(run, device="cpu")
    segment = opened.recipe.train.segment
    document = text.read_text(encoding="utf-8")[:limit]
    tokens = opened.text.tokenizer.encode(document)
    widths = [len(character.encode()) for character in document]
    if len(tokens) <= segment or len(tokens) != sum(widths):
        raise SystemExit(f"{text} needs more than {segment} bytes, and {run} must be a model of bytes")
    found = gain_from_memory(opened.model, tokens, segment=segment)
    bits = np.concatenate([[0.0], found.gain]) / np.log(2)  # the first token of a text is not predicted
    gains = np.add.reduceat(bits, np.cumsum([0, *widths[:-1]]))  # of characters, which may have several bytes

    print(f"{text.name}: memory saves {bits[segment:].mean():.3f} bits per byte after the first {segment} bytes")
    for begin, end in ((0, 4), (4, 16), (16, 64), (64, segment)):
        gain = found.by_position()[begin:end].mean() / np.log(2) if begin < segment else 0.0
        print(f"  bytes {begin + 1:>2} to {end:>3} of a segment: {gain:5.3f} {'#' * round(12 * gain)}")

    print("\nthe words that gain most, in bits:")
    words = [(gains[m.start() : m.end()].sum(), m) for m in re.finditer(r"\w+", document)]
    for gain, word in sorted(words, key=lambda pair: -pair[0])[:8]:
        before = document[max(0, word.start() - 40) : word.start()].replace("\n", " ")
        print(f"  {gain:5.1f}  ...{before}[{word.group()}]")

    shaded = Text("\nthe end of the text; green: memory saves over half a bit, bright: over two\n\n")
    for character, gain in list(zip(document, gains, strict=True))[-600:]:
        shaded.append(character, "on green" if gain > 2 else "on dark_sea_green4" if gain > 0.5 else "")
    Console().print(shaded)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Show where memory helps on a text.")
    parser.add_argument("text", nargs="?", type=Path, default=STORY, help="a text file; default: a short story")
    parser.add_argument("--run", default="novels-small", help="a run of a model of bytes; default: the shipped model")
    parser.add_argument("--limit", type=int, default=20_000, help="use at most this many characters")
    main(**vars(parser.parse_args()))
