"""A tokenizer of transformers as the server uses it: ids, text while it is generated, chat templates."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from jinja2 import TemplateError

from mnemo.errors import MnemoError, one_line
from mnemo.serving.served_model import ChatMessage

INCOMPLETE = "\ufffd"
"""A character of which the last bytes are missing"""
MARKS = {"Ġ": " ", "▁": " ", "Ċ": "\n"}
"""How vocabularies spell blanks"""
EARLIER = (ChatMessage("user", "question"), ChatMessage("assistant", "answer"))
"""Messages before those of a session that is continued; their text is cut off again."""


class TransformersCodec:
    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        # Tokenizers of the Rust library raise an error if two threads encode at the same time.
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        with self._lock:
            return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def decoder(self) -> TransformersDecoder:
        return TransformersDecoder(self.tokenizer)

    def name(self, token: int) -> str:
        spelled = self.tokenizer.convert_ids_to_tokens(token) or f"<{token}>"
        for mark, blank in MARKS.items():
            spelled = spelled.replace(mark, blank)
        return spelled

    def piece(self, token: int) -> bytes:
        return self.name(token).encode()


class TransformersDecoder:
    """Decodes the last tokens again with each new one, because a token's text can depend on those before it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._ids: list[int] = []
        """The tokens of the last piece of text, and those after it"""
        self._given = 0
        """How many of them were returned as text"""

    def feed(self, ids: Iterable[int]) -> str:
        self._ids += ids
        text, before = self._decode(self._ids), self._decode(self._ids[: self._given])
        if text.endswith(INCOMPLETE) or len(text) <= len(before):
            return ""
        self._ids, self._given = self._ids[self._given :], len(self._ids) - self._given
        return text[len(before) :]

    def finish(self) -> str:
        return self._decode(self._ids)[len(self._decode(self._ids[: self._given])) :]

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class TokenizerTemplate:
    """The chat template of a tokenizer."""

    def __init__(self, codec: TransformersCodec) -> None:
        self.codec = codec

    def prompt(self, messages: Sequence[ChatMessage], continued: bool) -> list[int]:
        """Token ids of messages, with the begin of an answer; `continued`: after an earlier answer.

        Templates put a default system message and other text before the first message. After an earlier answer that
        text is left out: it is what the template writes for two earlier messages alone.
        """
        text = self._text(messages, answer=True)
        if continued:
            before, together = self._text(EARLIER, answer=False), self._text([*EARLIER, *messages], answer=True)
            text = together.removeprefix(before) if together.startswith(before) else text
        return self.codec.encode(text)

    def _text(self, messages: Sequence[ChatMessage], answer: bool) -> str:
        listed = [{"role": "system" if role == "developer" else role, "content": text} for role, text in messages]
        try:
            return self.codec.tokenizer.apply_chat_template(listed, tokenize=False, add_generation_prompt=answer)
        except TemplateError as error:
            raise MnemoError(f"'messages': the model's chat template refuses them: {one_line(error)}") from None
