"""Compare with reference files of the published implementations.

Prints the largest error of every set of values in each file: max |ours - theirs| / max(1, max |theirs|).
Exit code 1 if one is above the tolerance, 2 if a file cannot be loaded.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mnemo.cli import console
from mnemo.cli.run_arguments import require_file
from mnemo.errors import MnemoError
from mnemo.interop.parity.reference_files import TOLERANCE, find_files
from mnemo.recipes.option_types import Several

if TYPE_CHECKING:
    from mnemo.interop.parity.comparison import Parity

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Args:
    files: Annotated[Several[Path], tyro.conf.Positional]
    """Reference files (safetensors), or folders with such files."""
    tolerance: float = TOLERANCE
    """Largest error that passes."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    if not args.files:
        raise MnemoError("name a reference file or a folder of them")
    if not args.tolerance >= 0:
        raise MnemoError(f"tolerance {args.tolerance} must not be negative")
    files = find_files(args.files)
    others = [path.name for path in args.files if path.is_file() and path not in files]
    if others:
        print(f"mnemo: left out, not safetensors: {', '.join(others)}", file=sys.stderr)
    if not files:
        raise MnemoError("no safetensors file among those given")
    require_file(files[0] if len(files) == 1 else None)
    results, unreadable = _check_all(files, args.tolerance)
    if args.json:
        console.print_json(_as_json(results, unreadable, args.tolerance))
    elif results:
        _print(results, args.tolerance)
    if unreadable:
        raise MnemoError("; ".join(unreadable))
    return 1 if any(result.status == "failed" for result in results.values()) else 0


def _check_all(files: list[Path], tolerance: float) -> tuple[dict[Path, Parity], list[str]]:
    from mnemo.interop.parity.comparison import check

    results: dict[Path, Parity] = {}
    unreadable = []
    show = console.progress("comparing", len(files), unit="files") if len(files) > 1 else nullcontext()
    with show as bar:
        for path in files:
            try:
                results[path] = check(path, tolerance)
            except MnemoError as error:
                unreadable.append(str(error))
            if bar is not None:
                bar.advance(1, path.name)
    return results, unreadable


def _print(results: dict[Path, Parity], tolerance: float) -> None:
    rows = [[path.name, result.status, _number(result.error), _explain(result)] for path, result in results.items()]
    console.table(rows, ["file", "result", "error", "largest error of each set"])
    counts = [f"{count} {status}" for status in ("passed", "failed", "refused") if (count := _count(results, status))]
    print(f"{', '.join(counts)}; tolerance {tolerance:g}")


def _count(results: dict[Path, Parity], status: str) -> int:
    return sum(result.status == status for result in results.values())


def _number(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


def _explain(result: Parity) -> str:
    if result.status == "refused":
        return result.reason
    sets = ", ".join(f"{name} {_number(error)}" for name, error in result.errors.items())
    return f"{sets}; worst: {result.worst}" if result.status == "failed" else sets


def _as_json(results: dict[Path, Parity], unreadable: list[str], tolerance: float) -> dict[str, Any]:
    files = [
        {
            "file": str(path),
            "status": result.status,
            "error": result.error,
            "errors": result.errors,
            "worst": result.worst or None,
            "reason": result.reason or None,
        }
        for path, result in results.items()
    ]
    passed = not unreadable and not _count(results, "failed")
    return {
        "format_version": FORMAT_VERSION,
        "tolerance": tolerance,
        "passed": passed,
        "files": files,
        "unreadable": unreadable,
    }
