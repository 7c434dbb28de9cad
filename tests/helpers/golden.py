"""Where the reference files are that come with the tests."""

from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"
