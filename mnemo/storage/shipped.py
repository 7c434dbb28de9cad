"""Trained models that come with the package, to use when there is no run yet.

    mnemo/shipped/NAME/   an export with weights in bfloat16, and card.json: data, licence, scores, checksum

They are found by name wherever a run is named, and nothing is ever written to their folders.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json

SHIPPED = Path(__file__).resolve().parents[1] / "shipped"
DEFAULT = "novels-small"
"""The model that is used when there is no run."""
CARD = "card.json"
TEXTS = ("title", "data", "licence", "training", "score", "sha256")
"""Fields of a card, all of them text."""


def shipped_names() -> list[str]:
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CARD}"))


def shipped_model(name: str) -> Path | None:
    """The folder of a model that comes with the package; None if none has this name."""
    return SHIPPED / name if name in shipped_names() else None


def is_shipped(folder: Path) -> bool:
    return folder.resolve().parent == SHIPPED


def load_card(folder: Path) -> dict[str, str]:
    """The card of a shipped model: facts as text, by name."""
    card: dict[str, Any] = load_json(folder / CARD)
    for name in TEXTS:
        if not isinstance(card.get(name), str):
            raise MnemoError(f"{folder / CARD} is damaged: its '{name}' is missing or not text")
    return {name: card[name] for name in TEXTS}


def weights_digest(folder: Path) -> str:
    """SHA-256 of the weights, to compare with the card."""
    return hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
