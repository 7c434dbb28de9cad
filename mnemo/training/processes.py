"""The processes of one training job. `torchrun --nproc-per-node N -m mnemo train ...` starts N of them.

A world is this process's view of the job: its rank, and functions with which processes decide together. `Alone` is a
single process; `Ranks` is one of several, connected by torch.distributed. Messages here are small and go through the
CPU; gradients are exchanged in `mnemo.training.distributed`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist

from mnemo.errors import CheckFailed, MnemoError
from mnemo.storage.weights import pick_device
from mnemo.training.launch import RankError, ReportedByMain, environment_number, is_main, local_rank

T = TypeVar("T")


class Alone:
    rank, size = 0, 1

    def device(self, name: str) -> torch.device:
        """The device of this process, for the name of a device in a recipe."""
        return pick_device(name)

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed over all processes, in the order of ranks, so that the last bit never depends on timing."""
        return list(values)

    def agree(self, signal: int | None) -> int | None:
        """The signal that any process has received, or None."""
        return signal

    def largest(self, values: Sequence[int]) -> list[int]:
        """The largest of each value over all processes."""
        return list(values)

    def first(self, work: Callable[[], T]) -> T:
        """Do the work in the main process first, then in the others; if it fails there, the others do not try."""
        return work()

    def main(self, work: Callable[[], T]) -> T:
        """Do the work in the main process; return its result, or raise its error, in all processes."""
        return work()

    def together(self, work: Callable[[], T]) -> T:
        """Do the work in every process; return each one's own result; if one fails, all fail."""
        return work()


class Ranks:
    """One of several processes. `timeout`: seconds to wait for the others before giving up."""

    def __init__(self, timeout: float) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))

    def device(self, name: str) -> torch.device:
        if name not in ("auto", "cpu", "cuda"):
            raise MnemoError(f"device '{name}': several processes share out the devices themselves, use cpu or cuda")
        device = pick_device(name)
        return torch.device("cuda", local_rank()) if device.type == "cuda" else device

    def sums(self, values: Sequence[float]) -> list[float]:
        own = torch.tensor(values, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, group=self.group)
        total = found[0]
        for other in found[1:]:
            total = total + other
        return total.tolist()

    def agree(self, signal: int | None) -> int | None:
        return self.largest([signal or 0])[0] or None

    def largest(self, values: Sequence[int]) -> list[int]:
        own = torch.tensor(values)
        dist.all_reduce(own, dist.ReduceOp.MAX, group=self.group)
        return own.tolist()

    def first(self, work: Callable[[], T]) -> T:
        made: list[T] = []
        self.main(lambda: made.append(work()))
        return self.together(lambda: made[0] if made else work())

    def main(self, work: Callable[[], T]) -> T:
        message: list[Any] = [None, None]
        failure: MnemoError | OSError | None = None
        if self.rank == 0:
            try:
                message[0] = work()
            except (MnemoError, OSError) as error:
                message[1], failure = str(error), error
        dist.broadcast_object_list(message, src=0, group=self.group)
        if failure is not None:
            raise failure
        if message[1] is not None:
            raise ReportedByMain(message[1])
        return message[0]

    def together(self, work: Callable[[], T]) -> T:
        result: list[T] = []
        failure: MnemoError | None = None
        try:
            result.append(work())
        except MnemoError as error:
            failure = error
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, None if failure is None else str(failure), group=self.group)
        failed = [(rank, text) for rank, text in enumerate(found) if text is not None]
        if not failed:
            return result[0]
        rank, text = failed[0]
        if self.rank == 0:
            raise failure or MnemoError(f"rank {rank}: {text}")
        raise ReportedByMain(text)


AnyWorld = Alone | Ranks


@contextmanager
def joined(device: str, timeout: float) -> Iterator[AnyWorld]:
    """Connect to the other processes started by torchrun, if any; connection failures become one-line errors.

    Yields an object with `rank` and `size`: 0 and 1 in a single process. `timeout`: seconds to wait for the others.
    """
    if dist.is_available() and dist.is_initialized():
        yield Ranks(timeout) if dist.get_world_size() > 1 else Alone()
        return
    if environment_number("WORLD_SIZE", 1) == 1:
        yield Alone()
        return
    with _named_by_rank(), _contact(timeout):
        _meet(pick_device(device if device in ("cpu", "cuda") else "auto"), timeout)
        yield Ranks(timeout)
        # Not after a failure: the process ends anyway, and this could wait for processes that never answer.
        dist.destroy_process_group()


def _meet(device: torch.device, timeout: float) -> None:
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
    from torch.distributed.rendezvous import rendezvous

    if device.type == "cuda":
        if local_rank() >= torch.cuda.device_count():
            raise MnemoError(f"process {local_rank()} of this machine has no GPU: it has {torch.cuda.device_count()}")
        torch.cuda.set_device(local_rank())
    # The CPU group, which gives a clear message, must time out before NCCL's watchdog ends the process.
    patience = timedelta(seconds=timeout if device.type == "cpu" else 1.5 * timeout)
    store, rank, size = next(rendezvous("env://", timeout=patience))
    own = PrefixStore(_name_of_start(PrefixStore("mnemo", store), rank, size, timeout), store)
    backend = "gloo" if device.type == "cpu" else "nccl"
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=patience)


def _name_of_start(store: Any, rank: int, size: int, timeout: float) -> str:
    """A name for this start of the job, which all of its processes agree on and no earlier start had.

    torchrun's store outlives restarts and still has the addresses of processes that have ended, and its count of
    restarts differs between machines. So each process writes a new name and waits until the main process answers to
    it, and the main process waits until all have received the answer.
    """
    name = uuid4().hex
    if rank:
        store.set(str(rank), name)
        start = store.get(name).decode()
        store.set(f"{start}/{rank}", "here")
        return start
    others, end = range(1, size), time.monotonic() + timeout
    while not store.check([f"{name}/{other}" for other in others]):
        for other in others:
            if store.check([str(other)]):
                store.set(store.get(str(other)).decode(), name)
        if time.monotonic() > end:
            raise dist.DistStoreError("timed out")
        time.sleep(0.02)
    return name


@contextmanager
def _named_by_rank() -> Iterator[None]:
    try:
        yield
    except (ReportedByMain, CheckFailed):
        raise
    except MnemoError as error:
        if is_main():
            raise
        raise RankError(f"rank {environment_number('RANK', 0)}: {error}") from None


@contextmanager
def _contact(timeout: float) -> Iterator[None]:
    """Turn connection failures between processes into MnemoErrors."""
    try:
        yield
    except (MnemoError, CheckFailed):
        raise
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        raise MnemoError(f"{_lost(error, timeout)}; its last checkpoint is whole, --resume goes on from it") from None


def _is_lost(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in ("gloo", "connection", "timed out"))


def _lost(error: RuntimeError, timeout: float) -> str:
    text = str(error).lower()
    refused = "connection refused" in text  # gloo reports this as "timed out" as well, long before the timeout
    if not refused and ("timed out" in text or "timeout" in text):
        return (
            f"another process of this job has not answered for {timeout:g} s (--train.timeout): it hangs, or works for "
            "longer than that"
        )
    return "another process of this job has ended"
