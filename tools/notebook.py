"""Run a notebook's code cells in one process, and store their output in it: `python -m tools.notebook FILE.ipynb`.

The notebooks of the examples use neither magics nor widgets, so no Jupyter kernel is needed: a cell is executed like a
block of the documentation, its printed text is kept, and open Matplotlib figures become PNG pictures.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot

DPI = 80


def execute(path: Path) -> dict[str, Any]:
    """Return the notebook with the output of its code cells; an exception in a cell is raised."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__notebook__"}
    pyplot.switch_backend("agg")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            source = compile("".join(cell["source"]), f"<cell {number}>", "exec", dont_inherit=True)
            exec(source, names)
        cell["outputs"] = [*_text(printed.getvalue()), *_figures()]
        cell["execution_count"] = number
    return notebook


def _text(printed: str) -> list[dict[str, Any]]:
    lines = printed.splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []


def _figures() -> list[dict[str, Any]]:
    outputs = []
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        figure = pyplot.figure(number)
        # Without the version of Matplotlib, which would change the file with every release.
        figure.savefig(picture, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None})
        pyplot.close(figure)
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return outputs


def main(path: Path) -> None:
    path.write_text(json.dumps(execute(path), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
