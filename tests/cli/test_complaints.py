"""What the parser complains of, in one line, whatever it draws its frame with."""

from __future__ import annotations

import pytest

from mnemo.cli.complaints import first_line, nearest_flag, paragraphs

UNICODE = """\
╭─ Parsing error ─────────────────╮
│ Unrecognized options: --memry   │
│ 7                               │
│ ─────────────────────────────── │
│ Perhaps you meant:              │
│     --memory INT                │
│         How far back.           │
╰─────────────────────────────────╯
"""
ASCII = UNICODE.translate(str.maketrans("╭╮╰╯│─", "++++|-"))
PLAIN = """\
 Parsing error
 -------------------------------
  Unrecognized options: --memry
  7
  ------------------------------
  Perhaps you meant:
      --memory INT
          How far back.

"""


@pytest.mark.parametrize("box", [UNICODE, ASCII, PLAIN])
def test_any_frame_is_taken_off(box: str) -> None:
    assert len(paragraphs(box)) == 2
    assert first_line(box) == "Unrecognized options: --memry 7"
    assert nearest_flag(box) == "--memory"


def test_without_a_frame_the_text_stays() -> None:
    assert first_line("Error parsing --x:\nno number.") == "--x: no number" and nearest_flag("no number") is None
    assert first_line("") == ""
