"""A model for lm-evaluation-harness, registered as "mnemo" on import.

    import mnemo.hf.harness
    lm_eval.simple_evaluate(model="mnemo", model_args="pretrained=runs/NAME", tasks=["wikitext"])

The rolling log-likelihood of a document carries the memory from the first token to the last. The harness's own
Hugging Face model would instead score each window of a document without any earlier context. A context that several
continuations share is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, StoppingCriteriaList

from mnemo.errors import MnemoError, install_command
from mnemo.hf.modeling import MnemoForCausalLM
from mnemo.hf.run_folders import from_run
from mnemo.hf.tokenization import MnemoTokenizer
from mnemo.inference.generation import read
from mnemo.storage.run_header import RECIPE, RUNS
from mnemo.storage.weights import pick_device

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ImportError:
    raise MnemoError(f"evaluation tasks need lm-evaluation-harness: {install_command('hf,harness')}") from None

Request = tuple[tuple[str, str], list[int], list[int]]
"""Texts of context and continuation, and the ids of both"""
GREEDY = {"do_sample": False, "temperature": 0.0}


@register_model("mnemo")
class MnemoLM(TemplateLM):
    """`pretrained`: a run, by folder or name, or a folder written by `save_pretrained`.

    `prefix`: text placed before a text that has no context, so that its first token can be predicted. If empty, the
    first token of such a text is not scored.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        device: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        prefix: str = "\n",
        max_gen_toks: int = 256,
    ) -> None:
        super().__init__()
        model, tokenizer = _open(pretrained)
        self._device = pick_device("auto" if device is None else device)
        self.model: MnemoForCausalLM = model.to(self._device).eval()  # type: ignore[arg-type]
        self.tokenizer: MnemoTokenizer = tokenizer
        self.max_gen_toks = int(max_gen_toks)
        self._prefix = self.tok_encode(prefix)[-1:] if prefix else []

    @property
    def eot_token_id(self) -> int:
        return self._prefix[0] if self._prefix else -1  # -1 marks requests whose first token is not scored

    @property
    def tokenizer_name(self) -> str:
        return f"mnemo-{self.tokenizer.core.unit}-{self.tokenizer.vocab_size}"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self.tokenizer.core.encode(string).tolist()

    def _loglikelihood_tokens(self, requests: list[Request], **kwargs: Any) -> list[tuple[float, bool]]:
        scores = []
        for context, group in groupby(map(_with_context, requests), key=lambda request: request[1]):
            same = list(group)
            found = self._score(context, [continuation for _, _, continuation in same])
            for (texts, _, _), score in zip(same, found, strict=True):
                self.cache_hook.add_partial("loglikelihood", texts, score)
            scores += found
        return scores

    @torch.no_grad()
    def _score(self, context: list[int], continuations: list[list[int]]) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether greedy decoding would produce it.

        The context is read once; the memory is copied for each continuation.
        """
        before = self.model(self._rows([context]), logits_to_keep=1, use_cache=True)
        cache, count = before.past_key_values, len(continuations)
        cache.batch_repeat_interleave(count)
        logits = before.logits.expand(count, -1, -1)
        longest = max(map(len, continuations))
        if longest > 1:
            rows = self._rows([ids[:-1] for ids in continuations])
            logits = torch.cat([logits, self.model(rows, past_key_values=cache).logits], 1)
        scores = logits.double().log_softmax(-1).cpu()
        return [_of_row(row, torch.tensor(ids)) for row, ids in zip(scores, continuations, strict=True)]

    def _rows(self, rows: Sequence[list[int]]) -> Tensor:
        """Return ids (B, T), padded on the right."""
        longest = max(map(len, rows))
        padding = self.model.config.vocab_size
        return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows], device=self._device)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        scores = []
        for request in requests:
            text = str(request.arguments[0])
            ids = [*self._prefix, *self.tok_encode(text)]
            score = -self._nats(ids) if len(ids) > 1 else 0.0
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), score)
            scores.append(score)
        return scores

    def _nats(self, ids: list[int]) -> float:
        model = self.model
        start = model.start_state(1, cached=True)
        return read(model.model, torch.tensor(ids), segment=model.config.segment, state=start)[1].nats

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        texts = []
        for request in requests:
            context, options = request.arguments
            text = self._continue(context, dict(options))
            self.cache_hook.add_partial("generate_until", (context, options), text)
            texts.append(text)
        return texts

    def _continue(self, context: str, options: dict[str, Any]) -> str:
        until = options.pop("until", None) or []
        until = [until] if isinstance(until, str) else list(until)
        most = int(options.pop("max_gen_toks", self.max_gen_toks))
        if not options.get("do_sample"):
            options = {name: value for name, value in options.items() if name not in GREEDY} | {"do_sample": False}
        ids = self.tok_encode(context) or self._prefix
        if not ids:
            raise MnemoError("cannot generate: the context is empty, and there is no prefix")
        stop = StoppingCriteriaList([_Stop(self.tokenizer, len(ids), until)])
        model: Any = self.model
        written = model.generate(self._rows([ids]), max_new_tokens=most, stopping_criteria=stop, **options)
        text = str(self.tokenizer.decode(written[0, len(ids) :]))
        return min((text.partition(end)[0] for end in until if end), key=len, default=text)


def _open(pretrained: str) -> tuple[MnemoForCausalLM, MnemoTokenizer]:
    if (Path(pretrained) / RECIPE).is_file() or (RUNS / pretrained / RECIPE).is_file():
        model, tokenizer = from_run(pretrained)
    elif Path(pretrained).is_dir():
        model, tokenizer = AutoModelForCausalLM.from_pretrained(pretrained), AutoTokenizer.from_pretrained(pretrained)
    else:
        raise MnemoError(f"'{pretrained}' is neither a run nor a folder")
    if not isinstance(model, MnemoForCausalLM) or not isinstance(tokenizer, MnemoTokenizer):
        raise MnemoError(f"{pretrained} is not a Mnemo model with its tokenizer")
    return model, tokenizer


def _with_context(request: Request) -> Request:
    """Use the first token of a text without context as its context."""
    texts, context, continuation = request
    return (texts, continuation[:1], continuation[1:]) if context == [-1] else request


def _of_row(scores: Tensor, ids: Tensor) -> tuple[float, bool]:
    scores = scores[: len(ids)]
    return float(scores.gather(1, ids[:, None]).sum()), bool((scores.argmax(-1) == ids).all())


class _Stop(StoppingCriteria):
    """Stop when the new text of every row contains one of the given strings."""

    def __init__(self, tokenizer: MnemoTokenizer, begin: int, until: list[str]) -> None:
        self._tokenizer, self._begin, self._until = tokenizer, begin, until

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        texts = [self._tokenizer.decode(row[self._begin :]) for row in input_ids]
        return torch.tensor([any(end in text for end in self._until) for text in texts], device=input_ids.device)
