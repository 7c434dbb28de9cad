"""The model for lm-evaluation-harness, tested with the real package on small tasks."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.real_models import TINY_LLAMA, tiny_llama, tiny_tokenizer
from helpers.tiny_runs import SEGMENT, sample_text, tiny_run
from transformers import AutoModelForCausalLM

from mnemo.cli.opened_run import open_with_tokenizer
from mnemo.cli.run_arguments import RunArgs
from mnemo.data.corpus import Split
from mnemo.errors import MnemoError
from mnemo.evaluation.perplexity import evaluate
from mnemo.hf import add_memory, from_run, save_adapter
from mnemo.inference.generation import generate
from mnemo.recipes.recipe import EvalConfig

lm_eval = pytest.importorskip("lm_eval")
harness = pytest.importorskip("mnemo.hf.harness")
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402
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


STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big dog. The dog was very sad because he lost his ball. Lily wanted to help him. "
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model with memory, whose training scored the last segment only, and its tokenizer."""
    path = tmp_path_factory.mktemp("wrapped")
    torch.manual_seed(0)
    model = add_memory(tiny_llama().eval(), tokens=4, segment=8, score=1, align="right")
    model.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def test_models_with_memory_are_scored_with_carried_memory(folder: Path) -> None:
    lm = harness.MnemoLM(str(folder), device="cpu")
    ids = [1, *tiny_tokenizer()(STORY, add_special_tokens=False).input_ids]
    assert len(ids) > 20
    model: Any = lm.reader.model
    x = torch.tensor([ids])
    with torch.no_grad():
        model.config.align = "left"
        logits = model(input_ids=x[:, :-1]).logits.log_softmax(-1)
        model.config.align = "right"
    expected = float(logits.gather(2, x[:, 1:, None]).sum())
    (found,) = lm.loglikelihood_rolling(instances("loglikelihood_rolling", (STORY,)))
    assert found == pytest.approx(expected, rel=1e-5)
    parts = [(STORY, " Then"), (STORY, " She saw the ball"), ("", STORY), (STORY + STORY, " Then")]
    scores = lm.loglikelihood(instances("loglikelihood", *parts), disable_tqdm=True)
    assert scores[2][0] == pytest.approx(found, rel=1e-5)
    for (context, continuation), (score, _) in zip(parts[:2] + parts[3:], scores[:2] + scores[3:], strict=True):
        before_ids, added = lm._encode_pair(context, continuation)
        with torch.no_grad():
            before, after = lm.reader.nats(before_ids), lm.reader.nats([*before_ids, *added])
        assert score == pytest.approx(before - after, rel=1e-4)


def test_models_with_memory_write_and_chat(folder: Path) -> None:
    lm = harness.MnemoLM(str(folder), device="cpu")
    ids = torch.tensor([lm.tok_encode(STORY)])
    lm.reader.model.generation_config.eos_token_id = None
    written = lm.reader.model.generate(memory=lm.reader.model.read(ids), max_new_tokens=9, do_sample=False)[0]
    whole = lm.tokenizer.decode(written, skip_special_tokens=True)
    (text,) = lm.generate_until(instances("generate_until", (STORY, {"until": [], "max_gen_toks": 9})))
    assert text == whole
    lm.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert lm.apply_chat_template([{"role": "user", "content": "hello"}]) == "hello"


def test_the_harness_runs_tasks_on_a_model_with_memory(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "texts.jsonl"
    data.write_text(json.dumps({"text": STORY * 3}) + "\n", encoding="utf-8")
    (tmp_path / "rolling.yaml").write_text(ROLLING.format(file=data))
    results = lm_eval.simple_evaluate(
        model="mnemo",
        model_args={"pretrained": str(folder)},
        tasks=["tiny_rolling"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        device="cpu",
        bootstrap_iters=0,
    )["results"]
    lm = harness.MnemoLM(str(folder), device="cpu")
    (score,) = lm.loglikelihood_rolling(instances("loglikelihood_rolling", (STORY * 3,)))
    size = len((STORY * 3).encode())
    assert results["tiny_rolling"]["bits_per_byte,none"] == pytest.approx(-score / size / math.log(2), rel=1e-5)


def test_adapters_are_evaluated_with_a_named_tokenizer(tmp_path: Path) -> None:
    save_adapter(add_memory(tiny_llama(), tokens=4, segment=8), tmp_path)
    with pytest.raises(MnemoError, match="has no tokenizer that can be loaded"):
        harness.MnemoLM(str(tmp_path), device="cpu")
    lm = harness.MnemoLM(str(tmp_path), tokenizer=str(TINY_LLAMA), device="cpu")
    ((score, _),) = lm.loglikelihood(instances("loglikelihood", (STORY, " Then")), disable_tqdm=True)
    assert score < 0


def test_the_harness_class_for_hugging_face_warns_of_windows(folder: Path) -> None:
    from lm_eval.models.huggingface import HFLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    harness_class: Any = HFLM
    theirs = harness_class(pretrained=model, tokenizer=tiny_tokenizer(), device="cpu", max_length=16)
    with pytest.warns(UserWarning, match="without the memory of earlier windows") as caught:
        theirs.loglikelihood_rolling(instances("loglikelihood_rolling", (STORY,)), disable_tqdm=True)
    assert len(caught) == 1
    model(input_ids=torch.tensor([[1, 2]]))  # a call from elsewhere does not warn: warnings are errors in tests


def test_the_models_of_the_harness_stay_known() -> None:
    assert "lm_eval.models" in sys.modules and get_model("hf").__name__ == "HFLM"


@pytest.mark.thorough
def test_the_models_of_the_harness_stay_known_in_a_new_process() -> None:
    """The harness registers its models when it is first asked for one, and none is registered."""
    code = "import mnemo.hf.harness; from lm_eval.api.registry import get_model as get; print(get('hf'), get('mnemo'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "HFLM" in done.stdout and "MnemoLM" in done.stdout, done.stderr


TASK = """
task: places
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]
"""


@pytest.mark.thorough
def test_the_command_of_the_harness_scores_a_model_with_memory(tmp_path: Path) -> None:
    add_memory(tiny_llama(), tokens=2, segment=16).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "Mary went to the garden. " * 9}))
    (tmp_path / "places.yaml").write_text(TASK.replace("FOLDER", str(tmp_path)))
    options = ["--model", "mnemo", "--model_args", f"pretrained={tmp_path}/model", "--tasks", "places"]
    command = [sys.executable, "-m", "mnemo.hf.harness_command", *options, "--include_path", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0 and "bits_per_byte" in done.stdout, done.stderr
