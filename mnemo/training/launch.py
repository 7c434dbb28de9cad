"""The place of this process in its job, as torchrun gives it in environment variables; without importing torch."""

from __future__ import annotations

import os

from mnemo.errors import MnemoError


class ReportedByMain(MnemoError):
    """Raised in the other processes for an error that the main process reports."""


class RankError(MnemoError):
    """An error of a single process other than the main one."""


def is_main() -> bool:
    """Whether this is the main process; known before the processes are connected."""
    return environment_number("RANK", 0) == 0


def is_alone() -> bool:
    """Whether torchrun has started no other processes."""
    return environment_number("WORLD_SIZE", 1) == 1


def starts_again() -> bool:
    """Whether torchrun has restarted this job after a failure."""
    return environment_number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def may_start_again() -> bool:
    return environment_number("TORCHELASTIC_MAX_RESTARTS", 0) > 0


def local_rank() -> int:
    return environment_number("LOCAL_RANK", 0)


def environment_number(variable: str, default: int) -> int:
    try:
        return int(os.environ.get(variable, default))
    except ValueError:
        raise MnemoError(f"{variable}={os.environ[variable]} is not a number") from None
