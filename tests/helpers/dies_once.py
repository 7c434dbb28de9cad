"""The command line as a job whose second process is killed during a save at the first start only."""

from __future__ import annotations

import os
import sys
from typing import Any

from mnemo.cli import main
from mnemo.storage import sharded as shards


def last_words(*arguments: Any) -> None:
    os._exit(9)


if __name__ == "__main__":
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        write, count = shards.write, iter(range(3))
        shards.write = lambda *arguments: last_words() if next(count) == 2 else write(*arguments)
    sys.exit(main())
