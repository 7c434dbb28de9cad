from __future__ import annotations

from mnemo.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
