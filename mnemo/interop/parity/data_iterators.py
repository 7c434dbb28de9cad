"""Compare with reference files of the published data iterators: all batches must be equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from mnemo.data.streams import Batch, ContiguousStream, SentenceStream, Stream, one_epoch
from mnemo.errors import MnemoError, unknown
from mnemo.interop.parity.reference import Reference

FIELDS = {"kind", "index", "bsz", "bptt", "n_batch"}


def check(reference: Reference) -> None:
    for case in reference.setting("cases", list):
        if not isinstance(case, dict) or FIELDS - case.keys():
            raise MnemoError(f"configuration: a case without some of {', '.join(sorted(FIELDS))}")
        _check_case(reference, f"{case['kind']}{case['index']}", case)


def _check_case(reference: Reference, name: str, case: Mapping[str, Any]) -> None:
    batches, expected = _batches(reference, name, case), case["n_batch"]
    reference.compare("batches", f"number of batches of {name}", torch.tensor(len(batches)), torch.tensor(expected))
    for index, batch in enumerate(batches[:expected]):
        reference.check("batches", f"{name}/batch{index}/input", batch.tokens.T)
        reference.check("batches", f"{name}/batch{index}/target", batch.targets.T)


def _batches(reference: Reference, name: str, case: Mapping[str, Any]) -> list[Batch]:
    ids = reference.take(f"{name}/stream").numpy()
    batch, segment, context = case["bsz"], case["bptt"], case.get("ext_len", 0)
    if case["kind"] == "ordered":
        return _epoch(lambda: ContiguousStream(ids, batch, segment, context=context))
    if case["kind"] == "shuffled":
        lengths = reference.take(f"{name}/sent_len").numpy()
        begins = np.cumsum(lengths) - lengths
        if int(lengths.sum()) != len(ids):
            raise MnemoError(f"'{name}/sent_len' does not add up to its stream")
        return _epoch(lambda: SentenceStream(ids, begins, batch, segment, context=context, shuffle=False))
    raise unknown("iterator", str(case["kind"]), ("ordered", "shuffled"))


def _epoch(stream: Callable[[], Stream]) -> list[Batch]:
    """Return the batches of one epoch; none if the text is too short (our stream then raises an error)."""
    try:
        return list(one_epoch(stream()))
    except MnemoError:
        return []
