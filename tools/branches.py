"""Count lines and branches of Python code, by package or by file: `python tools/branches.py [--files] [FOLDER]`.

A branch is an `if`, `for`, `while`, `except`, conditional expression or `match` case. Comprehensions (their
`for` and `if`) and boolean operators are added in a second column, so that moving branches into them shows.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

STATEMENTS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case)


class Count(NamedTuple):
    files: int = 0
    lines: int = 0
    branches: int = 0
    hidden: int = 0

    def plus(self, other: Count) -> Count:
        return Count(*(a + b for a, b in zip(self, other, strict=True)))

    def row(self, name: str) -> str:
        share = 100 / max(1, self.lines)
        rates = f"{self.branches * share:8.1f} {(self.branches + self.hidden) * share:8.1f}"
        return f"{name:44} {self.files:5} {self.lines:7} {rates}"


def count(path: Path) -> Count:
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    branches = sum(isinstance(node, STATEMENTS) for node in nodes)
    loops = sum(1 + len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))
    booleans = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return Count(1, len(text.splitlines()), branches, loops + booleans)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("mnemo"), help="the package to count")
    parser.add_argument("--files", action="store_true", help="one row a file, not one a package")
    args = parser.parse_args()
    rows: defaultdict[str, Count] = defaultdict(Count)
    for path in sorted(args.folder.rglob("*.py")):
        inside = path.relative_to(args.folder)
        name = str(inside) if args.files or len(inside.parts) == 1 else inside.parts[0]
        rows[name] = rows[name].plus(count(path))
        rows["total"] = rows["total"].plus(count(path))
    print(f"{'':44} {'files':>5} {'lines':>7} {'branches':>8} {'and in':>8}")
    print(f"{'':44} {'':>5} {'':>7} {'per 100':>8} {'express.':>8}")
    for name, row in sorted(rows.items(), key=lambda item: (item[0] == "total", item[0])):
        print(row.row(name))


if __name__ == "__main__":
    main()
