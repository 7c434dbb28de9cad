"""BABILong as a task of lm-evaluation-harness, for models that carry memory.

    import lm_eval
    from mnemo.hf.babilong_task import babilong_task
    task = babilong_task(load_data("qa1", FOLDER), tokenizer, length=4096, samples=100)
    lm_eval.simple_evaluate(model="mnemo", model_args="pretrained=FOLDER", tasks=[task])

`mnemo.hf.harness` registers the model "mnemo", which reads the context segment by segment. Answers are generated and
compared by the benchmark's rule.
"""

from __future__ import annotations

from typing import Any

from mnemo.data.babilong.answers import is_right
from mnemo.data.babilong.folder import BabiLongData
from mnemo.hf.harness import MnemoLM  # noqa: F401 - registers the model
from mnemo.hf.tuning.accuracy import TEST_SEED
from mnemo.hf.tuning.batches import build_task

MOST_TOKENS = 16
"""Tokens of a generated answer"""


def babilong_task(data: BabiLongData, tokenizer: Any, length: int, samples: int = 100, seed: int = TEST_SEED) -> Any:
    """Return the task; contexts have `length` tokens of the given tokenizer, and the question follows.

    The harness gives texts to models, so facts that are cut from their sentence may become other tokens there.
    """
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    task = build_task(data, "test", tokenizer)

    def documents(**_: Any) -> dict[str, Any]:
        chosen = [task.sample(number, length, seed) for number in range(samples)]
        rows = [
            {
                "context": tokenizer.decode([*sample.context.tolist(), *sample.question]),
                "question": sample.story.question,
                "answer": sample.story.answer,
            }
            for sample in chosen
        ]
        return {"test": Dataset.from_list(rows)}

    def score(document: dict[str, str], results: list[str]) -> dict[str, float]:
        return {"acc": float(is_right(data.task, document["question"], document["answer"], results[0]))}

    return ConfigurableTask(
        config={
            "task": f"babilong_{data.task}_{length}",
            "custom_dataset": documents,
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{context}}",
            "doc_to_target": "{{answer}}",
            "process_results": score,
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": MOST_TOKENS, "do_sample": False},
        }
    )
