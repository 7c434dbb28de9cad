from __future__ import annotations

import threading

import pytest
import torch
from helpers.tolerances import assert_close

pytest.importorskip("triton")

from mnemo.ops.cuda import decode_kernels, decode_projection, early_start, early_test
from mnemo.ops.cuda.early_start import early_starts, launch_options

CPU = torch.device("cpu")


def test_launches_start_early_only_inside_of_the_context() -> None:
    assert launch_options() == {"EARLY": False}
    with early_starts(True):
        assert launch_options() == {"EARLY": True, "launch_pdl": True}
        with early_starts(False):
            assert launch_options() == {"EARLY": False}
        assert launch_options()["EARLY"]
    assert launch_options() == {"EARLY": False}


def test_other_threads_launch_as_before() -> None:
    found = []
    with early_starts(True):
        thread = threading.Thread(target=lambda: found.append(launch_options()))
        thread.start()
        thread.join()
    assert found == [{"EARLY": False}]


def test_constants_that_would_be_copied_first_prevent_an_early_start() -> None:
    table = torch.zeros(4, 6)
    with early_starts(True):
        assert launch_options(table, None)["EARLY"]
        assert not launch_options(table.T, None)["EARLY"]


def test_only_recent_gpus_start_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not early_start.possible(CPU) and not early_test.works(CPU, torch.float32)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not early_start.possible(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert early_start.possible(torch.device("cuda"))
    monkeypatch.setenv("MNEMO_EARLY_KERNELS", "0")
    assert not early_start.possible(torch.device("cuda"))


def test_a_failed_test_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_start, "possible", lambda device: True)
    monkeypatch.setattr(early_test, "_found", {})
    monkeypatch.setattr(early_test, "layer_chain", lambda *given: lambda: torch.ones(2))
    monkeypatch.setattr(early_test, "recorded", lambda chain: chain() + 1)
    with pytest.warns(UserWarning, match="start one by one, which is slower: results differ"):
        assert not early_test.works(CPU, torch.float32)
    assert not early_test.works(CPU, torch.float32)


@pytest.mark.parametrize(
    ("slots", "further", "size", "distances"),
    [(3801, 928, 64, 128), (3801, 0, 64, 0), (520, 40, 64, 32), (3, 900, 64, 0), (3801, 900, 48, 0)],
)
def test_prefetched_distances_are_whole_pieces_inside_of_a_part(
    slots: int, further: int, size: int, distances: int
) -> None:
    ring = torch.empty(2, 1, 1, slots, size, dtype=torch.bfloat16)
    assert decode_kernels._prefetched(ring, further) == distances


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("batch", [1, 5, 16])
def test_recorded_chains_with_early_starts_give_the_same_numbers(
    dtype: torch.dtype, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not early_start.possible(torch.device("cuda")):
        pytest.skip("this GPU starts no kernel early")
    chain = early_test.layer_chain(torch.device("cuda"), dtype, batch)
    found = early_test.recorded(chain)
    for module, name in (
        (decode_kernels, "ONE_TEXT_PROGRAMS"),
        (decode_projection, "PARTS_PROGRAMS"),
        (decode_projection, "OUTPUTS"),
    ):
        monkeypatch.setattr(module, name, getattr(module, f"EARLY_{name}"))  # sums in the same order
    assert_close(found, chain())
