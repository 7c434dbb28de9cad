"""Read a document once, keep the model's memory of it in a file, and continue from that file.

    python examples/read_and_continue.py                  a short story, and the model that comes with Mnemo
    python examples/read_and_continue.py mybook.txt       your document

You will see how much better the end of the document is predicted with the memory of its beginning than without, and
how the model continues the document. The memory file has the same size after a page as after a book. The model is
small: it writes words and names, not a plot.
"""

import argparse
from pathlib import Path

import mnemo

STORY = Path(mnemo.__file__).parent / "serving" / "studio" / "assets" / "playground" / "example.txt"


def main(text: Path, memory: Path, tokens: int) -> None:
    document = text.read_text(encoding="utf-8").strip()
    if len(document) < 100:
        raise SystemExit(f"{text} is too short: it needs 100 characters")
    at = len(document) - min(500, len(document) // 4)
    beginning, end = document[:at], document[at:]
    run = mnemo.open_run("novels-small", device="cpu")

    session = run.session()
    session.read(beginning)
    session.save(memory)
    print(f"read {len(beginning):,} characters of {text.name} into {memory} ({memory.stat().st_size:,} bytes)\n")

    # A new session knows nothing. It could be in another process, or on another day.
    session = run.session(temperature=0.7, seed=1)
    without = session.score(end)
    session.load(memory)
    remembered = session.score(end)
    print(f"the last {len(end)} characters of the document:")
    print(f"  without the memory  {without.bits_per_token:.3f} bits per byte")
    print(f"  with the memory     {remembered.bits_per_token:.3f} bits per byte\n")

    session.read(end)
    print(f"...{end[-200:]}\n--- the model continues:\n{session.generate(tokens)}\n")
    print(f"also from the file: mnemo generate novels-small --memory {memory}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Read a document into a memory file, and continue from it.")
    parser.add_argument("text", nargs="?", type=Path, default=STORY, help="a text file; default: a short story")
    parser.add_argument("--memory", type=Path, default=Path("document.memory"), help="the file to write")
    parser.add_argument("--tokens", type=int, default=300, help="how many bytes to write")
    main(**vars(parser.parse_args()))
