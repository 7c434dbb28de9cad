"""A model for lm-evaluation-harness, registered as "mnemo" on import.

    import mnemo.hf.harness
    lm_eval.simple_evaluate(model="mnemo", model_args="pretrained=runs/NAME", tasks=["wikitext"])

It evaluates runs of Mnemo and transformers models with memory. The rolling log-likelihood of a document carries the
memory from the first token to the last, and contexts are never truncated. The harness's own Hugging Face model would
instead score each window of a document without any earlier context. A context that several continuations share is
read once.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, StoppingCriteriaList

from mnemo.errors import MnemoError, install_command, one_line
from mnemo.hf.harness_readers import MemoryReader, Reader, RunReader
from mnemo.hf.memory_tokens.adapter import DESCRIPTION, load_adapter
from mnemo.hf.memory_tokens.curriculum import memory_model
from mnemo.hf.memory_tokens.modeling import MemoryForCausalLM
from mnemo.hf.modeling import MnemoForCausalLM
from mnemo.hf.run_folders import from_run
from mnemo.hf.tokenization import MnemoTokenizer
from mnemo.storage.run_header import RECIPE, RUNS
from mnemo.storage.weights import pick_device

try:
    import lm_eval.models  # noqa: F401  (registers its own models, and would not after ours)
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
    """`pretrained`: a run, by folder or name, a folder written by `save_pretrained`, or an adapter's.

    `tokenizer`: folder or name of the tokenizer, if `pretrained` has none. `prefix`: text placed before a text that has
    no context, so that its first token can be predicted; by default a new line for runs, and the tokenizer's first or
    last special token for transformers models. If empty, the first token of such a text is not scored.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        tokenizer: str | None = None,
        device: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        prefix: str | None = None,
        max_gen_toks: int = 256,
    ) -> None:
        super().__init__()
        # The harness's command passes a GPU on machines without one, too.
        missing = str(device).startswith("cuda") and not torch.cuda.is_available()
        self._device = pick_device("auto" if device is None or missing else device)
        self.reader = _open(pretrained, tokenizer, self._device)
        self.tokenizer = self.reader.tokenizer
        self.max_gen_toks = int(max_gen_toks)
        self._prefix = self.reader.prefix(prefix)

    @property
    def eot_token_id(self) -> int:
        return self._prefix[0] if self._prefix else -1  # -1 marks requests whose first token is not scored

    @property
    def tokenizer_name(self) -> str:
        return self.reader.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self.reader.encode(string, add_special_tokens is not False)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

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
        """Return the log-probability of each continuation, and whether greedy decoding would produce it."""
        rows = self.reader.log_probabilities(context, continuations)
        return [_of_row(row, torch.tensor(ids)) for row, ids in zip(rows, continuations, strict=True)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        scores = []
        for request in requests:
            text = str(request.arguments[0])
            ids = [*self._prefix, *self.tok_encode(text, add_special_tokens=False)]
            with torch.no_grad():
                score = -self.reader.nats(ids) if len(ids) > 1 else 0.0
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), score)
            scores.append(score)
        return scores

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
        options["max_new_tokens"] = int(options.pop("max_gen_toks", self.max_gen_toks))
        if not options.get("do_sample"):
            options = {name: value for name, value in options.items() if name not in GREEDY} | {"do_sample": False}
        ids = self.tok_encode(context) or self._prefix
        if not ids:
            raise MnemoError("cannot generate: the context is empty, and there is no prefix")

        def stop(begin: int) -> StoppingCriteriaList:
            return StoppingCriteriaList([_Stop(self.tokenizer, begin, until)])

        text = str(self.tokenizer.decode(self.reader.write(ids, options, stop), skip_special_tokens=True))
        return min((text.partition(end)[0] for end in until if end), key=len, default=text)


def _open(pretrained: str, tokenizer: str | None, device: torch.device) -> Reader:
    if (Path(pretrained) / RECIPE).is_file() or (RUNS / pretrained / RECIPE).is_file():
        return _reader(pretrained, *from_run(pretrained), device)
    if not Path(pretrained).is_dir():
        raise MnemoError(f"'{pretrained}' is neither a run nor a folder")
    adapter = (Path(pretrained) / DESCRIPTION).is_file()
    model: Any = load_adapter(pretrained) if adapter else AutoModelForCausalLM.from_pretrained(pretrained)
    return _reader(pretrained, model, _load_tokenizer(pretrained, tokenizer), device)


def _load_tokenizer(pretrained: str, tokenizer: str | None) -> Any:
    try:
        return AutoTokenizer.from_pretrained(pretrained if tokenizer is None else tokenizer)
    except (OSError, ValueError, ImportError) as error:
        raise MnemoError(
            f"{pretrained} has no tokenizer that can be loaded; name a folder with one as tokenizer=FOLDER: "
            f"{one_line(error)}"
        ) from None


def _reader(pretrained: str, model: Any, tokenizer: Any, device: torch.device) -> Reader:
    model = model.to(device).eval()
    if isinstance(model, MnemoForCausalLM) and isinstance(tokenizer, MnemoTokenizer):
        return RunReader(model, tokenizer)
    if isinstance(model, MnemoForCausalLM) or not any(isinstance(part, MemoryForCausalLM) for part in model.modules()):
        raise MnemoError(f"{pretrained} is not a model with memory and its tokenizer")
    return MemoryReader(memory_model(model), tokenizer)


def _with_context(request: Request) -> Request:
    """Use the first token of a text without context as its context."""
    texts, context, continuation = request
    return (texts, continuation[:1], continuation[1:]) if context == [-1] else request


def _of_row(scores: Tensor, ids: Tensor) -> tuple[float, bool]:
    scores = scores[: len(ids)]
    return float(scores.gather(1, ids[:, None]).sum()), bool((scores.argmax(-1) == ids).all())


class _Stop(StoppingCriteria):
    """Stop when the new text of every row contains one of the given strings."""

    def __init__(self, tokenizer: Any, begin: int, until: list[str]) -> None:
        self._tokenizer, self._begin, self._until = tokenizer, begin, until

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        texts = [self._tokenizer.decode(row[self._begin :]) for row in input_ids]
        return torch.tensor([any(end in text for end in self._until) for text in texts], device=input_ids.device)
