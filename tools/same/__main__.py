"""`python -m tools.same BASE`: does the working tree compute the same numbers as the commit BASE?

Exit code 0: everything is the same, or differs as declared; 1: something differs; 2: the call is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.same.cases import CASES, Case
from tools.same.compare import Difference, compare_case
from tools.same.declared import DECLARED, Declared
from tools.same.judge import applying, judge, report
from tools.same.sides import SameError, Side, base_side, git, is_ancestor, missing, run_sides, tree_side

BY_NAME = {case.name: case for case in CASES}


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(f"{case.name:<18}{case.about}" for case in CASES))
        return 0
    if not args.base:
        parser.error("name a commit: make same BASE=<commit>")
    try:
        return _compare(args.base, _chosen(args.cases), args.jobs)
    except SameError as error:
        print(f"same: error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.same", description=__doc__)
    parser.add_argument("base", nargs="?", help="commit, branch or tag to compare with")
    parser.add_argument("--cases", nargs="+", metavar="NAME", default=[], help="only these cases")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run cases (default: 2)")
    return parser


def _chosen(names: Sequence[str]) -> list[Case]:
    for name in names:
        if name not in BY_NAME:
            raise SameError(f"no case '{name}'; --list shows them")
    return [case for case in CASES if not names or case.name in names]


def _compare(name: str, cases: list[Case], jobs: int) -> int:
    commit = git("rev-parse", "--verify", f"{name}^{{commit}}")
    base, tree = base_side(commit), tree_side()
    to_run = missing(base, cases)
    print(f"{len(cases)} cases in the working tree, {len(to_run)} at {commit[:12]} (others are cached)", flush=True)
    run_sides([(base, to_run), (tree, cases)], jobs)
    names = [case.name for case in cases]
    differences = [found for case in names for found in _differences(case, base, tree)]

    def has_old_numbers(declared: Declared) -> bool:
        begun = declared.since is None or is_ancestor(declared.since, commit)
        return begun and is_ancestor(commit, declared.after)

    verdict = judge(differences, applying(DECLARED, set(names), set(BY_NAME), has_old_numbers))
    print("\n".join(report(verdict, names)) or "no differences")
    print(f"outputs: {base.output} and {tree.output}")
    print(f"same: {'passed' if verdict.passed else 'FAILED'}, {len(names)} cases")
    return 0 if verdict.passed else 1


def _differences(case: str, base: Side, tree: Side) -> list[Difference]:
    """A command that fails at BASE leaves nothing to compare, so it counts as a difference too."""
    folders = base.output / case, tree.output / case
    return [*_failures(case, folders[0], "at BASE"), *_failures(case, folders[1], "now"), *compare_case(case, *folders)]


def _failures(case: str, folder: Path, when: str) -> Iterator[Difference]:
    for each in json.loads((folder / "exits.json").read_text()):
        if each["exit"] != each["expected"]:
            said = (folder / "outputs" / f"{each['command']}.stderr").read_text().strip().rpartition("\n")[2]
            what = f"exit code {each['exit']} {when}, {each['expected']} expected: {said}"
            yield Difference(case, "exits.json", each["command"], what)


if __name__ == "__main__":
    sys.exit(main())
