"""Train and use a memory: python examples/give_your_model_a_memory.py MODEL [MINUTES]"""

import sys
from pathlib import Path
from typing import Any

from lm_eval.evaluator import simple_evaluate
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from mnemo.data.babilong import load_data
from mnemo.hf import save_adapter
from mnemo.hf.babilong_task import babilong_task
from mnemo.hf.tuning.tune import tune
from mnemo.recipes.tuning import Tuning

QUESTION = "\nQuestion: Where is Mary?\nAnswer:"
CHAT = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def main(name: str, minutes: float, samples: int = 100) -> None:
    # Train with a curriculum: one segment, then two, then four. A data folder has real stories and books.
    options = Tuning(
        model=name,
        out=Path("tuned"),
        segment=64,
        stages=("1x96", "2", "4"),
        rate=1e-3,
        minutes=minutes,
        test_samples=samples,
    )
    tune(options)

    # The folder loads like that of any other model; importing mnemo.hf has registered its class.
    model: Any = AutoModelForCausalLM.from_pretrained("tuned/model").eval()
    tokenizer = AutoTokenizer.from_pretrained("tuned/model")

    # Read a long text once, keep its memory, and ask about it.
    story = ["Mary went to the garden."] + ["The sun was warm and the sky was blue."] * 20
    memory = model.read(" ".join(story), tokenizer=tokenizer)
    question = tokenizer(QUESTION, add_special_tokens=False, return_tensors="pt").input_ids
    print(tokenizer.decode(model.generate(question, memory=memory, max_new_tokens=5)[0]))

    # Pipelines and chat templates work as usual; the prompt may be longer than the model's context.
    write = pipeline("text-generation", model=model, tokenizer=tokenizer)
    print(write(" ".join(story) + QUESTION, max_new_tokens=5, return_full_text=False)[0]["generated_text"])
    tokenizer.chat_template = tokenizer.chat_template or CHAT
    chat = [{"role": "user", "content": " ".join(story) + QUESTION}]
    ids = tokenizer.apply_chat_template(chat, return_tensors="pt", return_dict=True).input_ids
    print(tokenizer.decode(model.generate(ids, max_new_tokens=5)[0, ids.shape[1] :]))

    # The evaluation harness reads the context segment by segment, and carries the memory.
    task = babilong_task(load_data("qa1", None), tokenizer, length=200, samples=samples)
    found: Any = simple_evaluate(model="mnemo", model_args="pretrained=tuned/model", tasks=[task])
    print(found["results"])
    save_adapter(model, "tuned/memory")  # the memory alone, for a backbone that was not trained


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 10.0)
