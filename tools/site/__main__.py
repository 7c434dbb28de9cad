"""`python -m tools.site`: build the documentation site into build/docs. Every warning is an error.

Exit code 0: the site is built; 1: Sphinx reported a problem, such as a broken link or a page outside of the navigation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.site.navigation import ROOT
from tools.site.stage import stage

HERE = Path(__file__).parent


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="repository with README.md and docs/")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", help="folder of the site")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "docs-work", help="folder for pages and caches")
    args = parser.parse_args(argv)
    stage(args.root, args.work / "pages")
    code = _sphinx(args.root, args.work, args.out)
    if code == 0:
        print(f"documentation: open {args.out / 'index.html'}")
    return code


def _sphinx(root: Path, work: Path, out: Path) -> int:
    from sphinx.cmd.build import build_main

    # All pages are written, because each shows the navigation; pages that have not changed are not parsed again.
    options = [
        "-q",
        "-W",
        "--keep-going",
        "--write-all",
        "-c",
        str(HERE),
        "-d",
        str(work / "cache"),
        "-D",
        f"repository={root}",
    ]
    return build_main([*options, str(work / "pages"), str(out)])


if __name__ == "__main__":
    sys.exit(main())
