from __future__ import annotations

import os

# Before torch is imported, and inherited by every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["HF_HUB_OFFLINE"] = "1"

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from helpers import cpu_times
from helpers.attention import by_the_equation
from helpers.garbage import OnlyNewObjects
from helpers.golden import GOLDEN
from helpers.models import set_seed
from helpers.record import Record

from mnemo.model.layers import modules as layers

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run as Python

torch.set_num_threads(1)
# No test can observe that data reached the disk, which takes milliseconds for each file; tests of power failures
# replace this function by one that records its calls.
os.fsync = os.fstat  # type: ignore[assignment]
hypothesis.settings.register_profile("mnemo", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("mnemo")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["MNEMO_DATA"] = tempfile.mkdtemp(prefix="mnemo-tests-")
    os.environ["HF_HOME"] = os.environ["MNEMO_DATA"]
    path: Path | None = config.getoption("--record")
    if path is not None:
        config.pluginmanager.register(Record(path, config.getoption("--commit")))
    config.pluginmanager.register(OnlyNewObjects())
    cpu_times.register(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(os.environ["MNEMO_DATA"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="write the result, with commit and versions, to this JSON file")
    parser.addoption("--commit", help="the commit that is tested, where there is no git to ask")
    parser.addoption("--pictures", type=Path, help="browser tests write the documentation's pictures to this folder")
    parser.addoption("--cpu-times", type=Path, help="write the processor seconds of each test to this file")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(_gpu_mark())


def _gpu_mark() -> pytest.MarkDecorator:
    """Skipped without a GPU; with one, float64, and masks that no kernel knows, run in plain PyTorch as they should."""
    if not torch.cuda.is_available():
        return pytest.mark.skip(reason="no CUDA device")
    return pytest.mark.filterwarnings("ignore:attention runs in plain PyTorch")


@pytest.fixture(autouse=True)
def same_start() -> Iterator[None]:
    """Every test starts from the same seeds and the default dtype, in whatever order tests run."""
    random.seed(0)
    np.random.seed(0)
    set_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def pictures(request: pytest.FixtureRequest) -> Path | None:
    """The folder for pictures of the studio's pages; None unless it is wanted."""
    folder = request.config.getoption("--pictures")
    return None if folder is None else request.config.invocation_params.dir / folder


@pytest.fixture
def reference_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by the paper's equation, because compiled graphs cannot contain the CPU's own operations."""
    monkeypatch.setattr(layers, "relative_attention", by_the_equation)


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of reference files that come with the tests."""
    return GOLDEN


@pytest.fixture(scope="session")
def golden_folders(golden: Path) -> list[Path]:
    """That folder, and the larger one that MNEMO_GOLDEN names where it is set."""
    extra = os.environ.get("MNEMO_GOLDEN")
    return [golden, Path(extra)] if extra else [golden]
