"""Text of generated tokens: decoded piece by piece, up to a stop string or a token that ends the text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from mnemo.data.tokenizers import Decoder

TAIL = 8
"""Earlier tokens that a decoder gets: they decide about a space, and complete a character of several bytes."""


class TextStream:
    """Decodes tokens. Text that may be the begin of a stop string is held back until it is known to be none."""

    def __init__(
        self, decoder: Decoder, before: Iterable[int], stop: Sequence[str] = (), end: Collection[int] = ()
    ) -> None:
        """`before`: the last tokens before the text. `stop`: strings before which the text ends."""
        self.decoder, self.stop, self.end = decoder, stop, end
        self.stopped = False
        self._held = ""
        decoder.feed(before)

    def feed(self, token: int) -> str:
        """The text that the token adds; sets `stopped` if it is the last one."""
        if token in self.end:
            self.stopped = True
            return self._release()
        self._held += self.decoder.feed([token])
        return self._up_to_stop()

    def finish(self, is_end: bool = True) -> str:
        """The rest of the text, after its last token.

        `is_end`: False if another stream goes on from the last tokens. It then gets the character of which some bytes
        are still missing.
        """
        if self.stopped:
            return ""
        if is_end:
            self._held += self.decoder.finish()
        return self._up_to_stop() + self._release()

    def _up_to_stop(self) -> str:
        found = [at for at in (self._held.find(stop) for stop in self.stop) if at >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = max((_overlap(self._held, stop) for stop in self.stop), default=0)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def _release(self) -> str:
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that is a begin of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
