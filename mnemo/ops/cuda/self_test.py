"""Tests of kernels before their first use on a device, and a record of those that passed in earlier processes.

A test compiles kernels and compares their results with plain PyTorch, which takes seconds. Passed tests are noted in a
JSON file, under a hash of everything that they depend on: the sources of this package, the versions of torch, Triton
and the driver, and the GPU. A later process with the same hash skips the test; with `MNEMO_TEST_KERNELS=1`, none does.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from mnemo.errors import MnemoError, one_line
from mnemo.files.json_file import load_json, write_json
from mnemo.ops.sources import sources_hash

MOST_PASSED = 1000
"""Passed tests in a file; when there are more, the oldest are removed."""


class SelfTest:
    """The test of one group of kernels.

    `failure` compares kernels with the plain path for heads of a type and size on a device, and returns what is wrong.
    """

    def __init__(self, name: str, failure: Callable[[torch.device, torch.dtype, int], str | None]) -> None:
        self.name, self._failure = name, failure
        self._found: dict[tuple[int, torch.dtype, int], str | None] = {}

    def obstacle(self, device: torch.device, dtype: torch.dtype, size: int) -> str | None:
        """Why the kernels are not used for heads of a type and size; None if they are."""
        key = (device.index or 0, dtype, size)
        if key in self._found:
            return self._found[key]
        if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
            return f"{self.name} have not been tested"  # no test can run now
        self._found[key] = problem = self._problem(device, dtype, size)
        if problem is not None:
            warnings.warn(f"{self.name} are off, going on slower: {problem}", stacklevel=2)
        return problem

    def _problem(self, device: torch.device, dtype: torch.dtype, size: int) -> str | None:
        if passed_before(self.name, device, dtype, size):
            return None
        try:
            problem = self._failure(device, dtype, size)
        except Exception as error:  # any compiler error: the plain path is used instead
            problem = f"{type(error).__name__}: {one_line(error)}"
        if problem is None:
            note_passed(self.name, device, dtype, size)
        return problem


def passed_before(name: str, device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Whether an earlier process noted that the same test passed."""
    if device.type != "cuda" or os.environ.get("MNEMO_TEST_KERNELS") == "1":
        return False
    return _key(name, device, dtype, size) in _load()


def note_passed(name: str, device: torch.device, dtype: torch.dtype, size: int) -> None:
    """Note a passed test for later processes, if the file can be written."""
    if device.type != "cuda" or (key := _key(name, device, dtype, size)) in (noted := _load()):
        return
    passed = [*noted, key][-MOST_PASSED:]
    with suppress(OSError):
        path = passed_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"passed": passed})


def passed_file() -> Path:
    """The record of passed tests: `mnemo/kernel-tests.json` in the user's cache folder."""
    cache_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_folder).expanduser() / "mnemo" / "kernel-tests.json"


def _load() -> list[str]:
    """Keys of passed tests; none if the file is absent, damaged or of another version."""
    try:
        passed = load_json(passed_file()).get("passed")
    except (MnemoError, OSError):
        return []
    return [key for key in passed if isinstance(key, str)] if isinstance(passed, list) else []


def _key(name: str, device: torch.device, dtype: torch.dtype, size: int) -> str:
    parts = [name, str(dtype), str(size), _gpu(device.index or 0), sources_hash(), _compilers()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _gpu(index: int) -> str:
    found = torch.cuda.get_device_properties(index)
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: None)()
    return f"{found.name} {found.major}.{found.minor} {found.multi_processor_count} {driver}"


@cache
def _compilers() -> str:
    """The versions of everything that makes programs of the sources."""
    versions = [torch.__version__, str(torch.version.cuda), str(sys.version_info[:2])]
    with suppress(PackageNotFoundError):
        versions.append(version("triton"))
    return " ".join([*versions, os.environ.get("TRITON_PTXAS_PATH", "")])
