"""Text for the playground: uploaded bytes to text, and tokens to the pieces of text that they show as."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable

from mnemo.data.text_parts import BYTE_ORDER_MARK
from mnemo.errors import MnemoError
from mnemo.serving.served_model import TextCodec

CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
MOST_CONTROL = 0.01
"""Largest share of control characters in a text."""
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def uploaded_text(data: bytes, name: str) -> str:
    """Return the text of a file; an error of one line if it is none."""
    if data.startswith(UTF_16):
        raise MnemoError(f"{name} is UTF-16 text: save it as UTF-8")
    try:
        text = data.removeprefix(BYTE_ORDER_MARK).decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte {data[error.start]:#04x} at offset {error.start:,}"
        raise MnemoError(f"{name} is not UTF-8 text ({found}): the playground reads text files only") from None
    if not text:
        raise MnemoError(f"{name} is empty")
    if len(CONTROL.findall(text)) > MOST_CONTROL * len(text):
        raise MnemoError(f"{name} is not text: it consists largely of control characters")
    return text


def token_texts(codec: TextCodec, before: Iterable[int], ids: Iterable[int]) -> list[str]:
    """Return the text that each token adds; `before`: the last tokens before them.

    A token that ends inside of a character adds nothing; the character comes with its last token.
    """
    decoder = codec.decoder()
    decoder.feed(before)
    texts = [decoder.feed([token]) for token in ids]
    if texts:
        texts[-1] += decoder.finish()
    return texts


def excerpt(codec: TextCodec, ids: list[int]) -> str:
    """Return tokens as one line of text."""
    return " ".join("".join(token_texts(codec, ids[:0], ids)).split()).strip("\N{REPLACEMENT CHARACTER}")
