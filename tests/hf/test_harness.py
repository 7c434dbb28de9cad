"""The model for lm-evaluation-harness, tested with the real package on small tasks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_runs import SEGMENT, sample_text, tiny_run

from mnemo.cli.opened_run import open_with_tokenizer
from mnemo.cli.run_arguments import RunArgs
from mnemo.data.corpus import Split
from mnemo.errors import MnemoError
from mnemo.evaluation.perplexity import evaluate
from mnemo.hf import from_run
from mnemo.inference.generation import generate
from mnemo.recipes.recipe import EvalConfig

lm_eval = pytest.importorskip("lm_eval")
harness = pytest.importorskip("mnemo.hf.harness")
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

TEXTS = sample_text(6).split("\0")
ROLLING = """
task: tiny_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""
CHOICE = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{text[:20]}}}}"
doc_to_target: 0
doc_to_choice: [" cat", " dog sat", "x"]
metric_list: [{{metric: acc}}]
"""


@pytest.fixture(scope="module")
def model() -> Any:
    return harness.MnemoLM(str(tiny_run()), device="cpu", prefix="")


def instances(kind: Any, *arguments: tuple[Any, ...]) -> list[Any]:
    return [Instance(request_type=kind, doc={}, arguments=given, idx=i) for i, given in enumerate(arguments)]


def nats(text: str) -> tuple[float, int]:
    """The loss of one text by the core's evaluation, with an empty memory."""
    opened = open_with_tokenizer(RunArgs(run=str(tiny_run()), device="cpu"))
    ids = opened.tokenizer.encode(text)
    split = Split(name="text", ids=ids, documents=None, num_bytes=len(text.encode()), num_words=0, num_lines=0)
    score = evaluate(opened.run.model, split, EvalConfig(batch=1), segment=SEGMENT)
    return score.loss * score.tokens, score.tokens


def test_rolling_carries_the_memory_as_evaluation_does(model: Any) -> None:
    found = model.loglikelihood_rolling(instances("loglikelihood_rolling", *((text,) for text in TEXTS)))
    assert found == pytest.approx([-nats(text)[0] for text in TEXTS], rel=1e-5)
    pieces = [TEXTS[0][i : i + SEGMENT] for i in range(0, len(TEXTS[0]), SEGMENT)]
    forgetful = sum(model.loglikelihood_rolling(instances("loglikelihood_rolling", *((p,) for p in pieces))))
    assert abs(forgetful - found[0]) > 0.1


def test_continuations_of_one_context_are_scored_as_alone(model: Any) -> None:
    pairs = [
        ("the cat that saw", " the dog"),
        ("the cat that saw", "x"),
        ("the cat that saw", " cat sat under"),
        ("a", " b"),
    ]
    together = model.loglikelihood(instances("loglikelihood", *pairs), disable_tqdm=True)
    for (context, continuation), (score, greedy) in zip(pairs, together, strict=True):
        before = nats(context)[0] if len(context) > 1 else 0.0
        assert score == pytest.approx(before - nats(context + continuation)[0], rel=1e-4)
        opened = open_with_tokenizer(RunArgs(run=str(tiny_run()), device="cpu"))
        ids, wanted = (torch.from_numpy(opened.tokenizer.encode(t).astype("int64")) for t in (context, continuation))
        written = generate(opened.run.model, [ids], num_tokens=len(wanted), segment=SEGMENT, temperature=0).tokens[0]
        assert greedy == torch.equal(written, wanted)


def test_a_text_without_context(model: Any) -> None:
    ((score, _),) = model.loglikelihood(instances("loglikelihood", ("", "the cat")), disable_tqdm=True)
    assert score == pytest.approx(-nats("the cat")[0], rel=1e-5)
    prefixed = harness.MnemoLM(str(tiny_run()), device="cpu")
    ((score, _),) = prefixed.loglikelihood(instances("loglikelihood", ("", "the cat")), disable_tqdm=True)
    assert score == pytest.approx(-nats("\nthe cat")[0], rel=1e-5)


def test_generation_stops_where_it_is_told(model: Any) -> None:
    context = TEXTS[0][:30]
    (whole,) = model.generate_until(instances("generate_until", (context, {"until": [], "max_gen_toks": 24})))
    end = whole[5]
    options = {"until": [end, "\x01"], "max_gen_toks": 24, "temperature": 0.0}
    (stopped,) = model.generate_until(instances("generate_until", (context, options)))
    assert stopped == whole.partition(end)[0]


def test_the_harness_runs_tasks(tmp_path: Path) -> None:
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    for name, task in (("rolling", ROLLING), ("choice", CHOICE)):
        (tmp_path / f"{name}.yaml").write_text(task.format(file=data))
    from_run(tiny_run()).save_pretrained(tmp_path / "folder")
    results = lm_eval.simple_evaluate(
        model="mnemo",
        model_args={"pretrained": str(tmp_path / "folder"), "prefix": ""},
        tasks=["tiny_rolling", "tiny_choice"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        device="cpu",
        bootstrap_iters=0,
    )["results"]
    total, size = sum(nats(text)[0] for text in TEXTS), sum(len(text.encode()) for text in TEXTS)
    bits = results["tiny_rolling"]["bits_per_byte,none"]
    assert bits == pytest.approx(total / size / math.log(2), rel=1e-5)
    assert 0 <= results["tiny_choice"]["acc,none"] <= 1


def test_what_is_no_model_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MnemoError, match="'nothing' is neither a run nor a folder"):
        harness.MnemoLM("nothing")
