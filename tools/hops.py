"""Count the files and calls that one segment passes through: `python tools/hops.py`.

An XL model in evaluation mode reads one segment after a first one. The script counts the Python functions of the
package that are called: distinct files, distinct functions, and the deepest chain of calls (hops). Functions of PyTorch
in between are not counted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import mnemo
from mnemo import XL, Model, ModelConfig, Plan

PACKAGE = Path(mnemo.__file__).parent


class Counter:
    """A profile function that keeps the chain of the package's calls that are open."""

    def __init__(self) -> None:
        self.open: list[FrameType] = []
        self.deepest: list[str] = []
        self.functions: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        if event == "call":
            self.open.append(frame)
            chain = [_name(each) for each in self.open]
            self.functions.add(chain[-1])
            self.deepest = max(self.deepest, chain, key=len)
        elif event == "return":
            self.open.remove(frame)


def _name(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename).relative_to(PACKAGE)
    return f"{path}:{frame.f_code.co_qualname}"


def count(cached: bool) -> Counter:
    model = Model(ModelConfig(num_layers=2, memory=Plan(long=XL(length=8)))).eval()
    tokens, counter = torch.zeros(2, 8, dtype=torch.int64), Counter()
    with torch.no_grad():
        _, state = model(tokens, model.init(2, cached=cached))
        sys.setprofile(counter)
        model(tokens, state)
        sys.setprofile(None)
    return counter


def main() -> None:
    for cached in (False, True):
        counter = count(cached)
        files = {function.partition(":")[0] for function in counter.functions}
        form = "keys and values" if cached else "hidden rows"
        print(f"{form}: {len(files)} files, {len(counter.functions)} functions, {len(counter.deepest)} hops")
        print("".join(f"  {function}\n" for function in counter.deepest), end="")


if __name__ == "__main__":
    main()
