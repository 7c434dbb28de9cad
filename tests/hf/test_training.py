"""Training through the transformers library: the Trainer, streams with memory, adapters, checkpoints, compilation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from helpers.hf_models import SEGMENT, hf_model, in_own_memory
from helpers.mechanisms import MECHANISMS
from helpers.models import random_tokens
from helpers.tolerances import assert_close
from torch import Tensor
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from mnemo.data.streams import ContiguousStream, one_epoch
from mnemo.data.tokenizers import ByteTokenizer
from mnemo.errors import MnemoError
from mnemo.hf import MnemoForCausalLM, MnemoTokenizer, StreamData, StreamTrainer
from mnemo.memory.state import reset

IDS = random_tokens(1, 240, seed=3)[0].numpy()
DOCUMENTS = np.array([0, 13, 51, 77, 130, 171])


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    settings: dict[str, Any] = dict(
        learning_rate=0.1,
        optim="sgd",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        logging_steps=1,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    return TrainingArguments(output_dir=str(folder), **settings | options)


def stream(batch: int = 2, documents: np.ndarray | None = DOCUMENTS) -> ContiguousStream:
    return ContiguousStream(IDS, batch, SEGMENT, documents=documents)


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def by_hand(model: Any, data: ContiguousStream, steps: int, lr: float = 0.1) -> list[float]:
    """Plain gradient descent through the core."""
    core, state, found = model.model.train(), None, []
    for batch, _ in zip(one_epoch(data), range(steps), strict=False):
        state = core.init(len(batch.tokens)) if state is None else state
        state = state if batch.starts is None else reset(state, batch.starts)
        out, state = core(batch.tokens, state, lengths=batch.lengths)
        loss = core.loss(out, batch.targets).sum() / (batch.targets >= 0).sum()
        core.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in core.parameters():
                if parameter.grad is not None:
                    parameter -= lr * parameter.grad
        found.append(float(loss.detach()))
    return found


def test_streams_carry_the_memory_and_documents_reset_it(tmp_path: Path) -> None:
    expected, model = hf_model(), hf_model()
    trainer = StreamTrainer(model, arguments(tmp_path, max_steps=9), train_dataset=StreamData(stream()))
    trainer.train()
    np.testing.assert_allclose(losses(trainer), by_hand(expected, stream(), 9), atol=1e-4)
    for name, parameter in model.model.named_parameters():
        assert_close(parameter, expected.model.get_parameter(name))


def test_evaluation_reads_its_own_stream_and_leaves_the_training_memory_alone(tmp_path: Path) -> None:
    plain, evaluated = hf_model(), hf_model()
    data, held_out = StreamData(stream(documents=None)), StreamData(stream(documents=None))
    first = StreamTrainer(plain, arguments(tmp_path / "a", max_steps=6), train_dataset=data)
    first.train()
    options = dict(max_steps=6, eval_strategy="steps", eval_steps=2)
    trainer = StreamTrainer(evaluated, arguments(tmp_path / "b", **options), train_dataset=data, eval_dataset=held_out)
    trainer.train()
    assert losses(first) == losses(trainer)
    found = trainer.evaluate()["eval_loss"]
    state, means = None, []
    for batch in one_epoch(stream(documents=None)):
        with torch.no_grad():
            out, state = evaluated.model.eval()(batch.tokens, state)
            means.append(float(evaluated.model.loss(out, batch.targets).mean()))
    assert found == pytest.approx(np.mean(means), abs=1e-9)


def test_resuming_goes_on_with_the_memory(tmp_path: Path) -> None:
    whole, resumed = hf_model(), hf_model()
    options = dict(max_steps=8, save_strategy="steps", save_steps=4, save_total_limit=3)
    trainer = StreamTrainer(whole, arguments(tmp_path, **options), train_dataset=StreamData(stream()))
    trainer.train()
    again = StreamTrainer(resumed, arguments(tmp_path / "again", **options), train_dataset=StreamData(stream()))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert losses(again) == losses(trainer)
    assert all(map(torch.equal, whole.state_dict().values(), resumed.state_dict().values()))
    loaded = in_own_memory(MnemoForCausalLM.from_pretrained(tmp_path / "checkpoint-8"))
    assert torch.equal(loaded(random_tokens(1, 5)).logits, whole(random_tokens(1, 5)).logits)


def test_the_stream_trainer_takes_streams_only(tmp_path: Path) -> None:
    with pytest.raises(MnemoError, match="StreamTrainer needs StreamData, not a list"):
        StreamTrainer(hf_model(), arguments(tmp_path), train_dataset=[{"input_ids": [1]}])
    with pytest.raises(MnemoError, match="a sample of StreamData is a batch"):
        wrong = arguments(tmp_path, max_steps=1, per_device_train_batch_size=4)
        StreamTrainer(hf_model(), wrong, train_dataset=StreamData(stream()))


def test_the_plain_trainer_reads_samples_of_several_segments(tmp_path: Path) -> None:
    tokenizer = MnemoTokenizer.of(ByteTokenizer(bytes(range(23))), padding_side="right")
    data = [{"input_ids": row.tolist()} for row in random_tokens(1, 70)[0].split([9, 14, 3, 20, 11, 13])]
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    options = dict(per_device_train_batch_size=2, per_device_eval_batch_size=6, num_train_epochs=6, learning_rate=0.5)
    model = hf_model(dtype=torch.float32, **MECHANISMS["rmt"])
    trainer = Trainer(model, arguments(tmp_path, **options), collator, data, data)  # type: ignore[arg-type]
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    everything = collator(data)
    with torch.no_grad():
        after = float(model.eval()(**everything).loss)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(after, abs=1e-5)
    assert after < before - 0.1


def test_accumulated_batches_equal_one(tmp_path: Path) -> None:
    rows = [{"input_ids": row, "labels": row} for row in random_tokens(4, 11)]
    options = [dict(per_device_train_batch_size=4), dict(gradient_accumulation_steps=4)]
    models = [hf_model(), hf_model()]
    for model, option in zip(models, options, strict=True):
        Trainer(model, arguments(tmp_path, max_steps=2, **option), train_dataset=rows).train()  # type: ignore[arg-type]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert_close(one, other)


def gradients(model: Any, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["xl", "rmt-with-cache"])
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    model, ids = hf_model(**MECHANISMS[name]).train(), random_tokens(2, 11)
    expected = gradients(model, ids)
    kept = _saved_bytes(model, ids)
    model.gradient_checkpointing_enable()
    found = gradients(model, ids)
    assert found.keys() == expected.keys()
    for key, gradient in found.items():
        assert_close(gradient, expected[key])
    assert _saved_bytes(model, ids) < kept / 3
    model.gradient_checkpointing_disable()
    assert _saved_bytes(model, ids) == kept


def _saved_bytes(model: Any, ids: Tensor) -> int:
    """Bytes that a forward pass keeps for the backward pass."""
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids, labels=ids)
    return sum(sizes)


def test_lora_trains_saves_and_loads(tmp_path: Path) -> None:
    model, ids = hf_model(dtype=torch.float32), random_tokens(2, 11)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = peft.LoraConfig(r=2, target_modules=["query", "key_value", "inner", "outer"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert trained and all("lora" in name for name in trained)
    rows = [{"input_ids": row, "labels": row} for row in ids]
    Trainer(adapted, arguments(tmp_path / "runs", max_steps=3), train_dataset=rows).train()  # type: ignore[arg-type]
    adapted.eval().save_pretrained(str(tmp_path))
    base = hf_model(dtype=torch.float32)
    assert all(torch.equal(before[name], tensor) for name, tensor in base.state_dict().items())
    loaded = peft.PeftModel.from_pretrained(base, str(tmp_path))
    with torch.no_grad():
        changed = adapted(ids).logits
        assert_close(loaded.eval()(ids).logits, changed)
        assert not torch.allclose(hf_model(dtype=torch.float32)(ids).logits, changed)
    written = loaded.generate(input_ids=ids, max_new_tokens=6, do_sample=False)
    assert torch.equal(written, loaded.merge_and_unload().generate(ids, max_new_tokens=6, do_sample=False))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # the compiler's own
def test_a_compiled_model_gives_the_same_gradients() -> None:
    model, ids = hf_model(num_layers=1), random_tokens(2, SEGMENT)
    expected = gradients(model, ids)
    compiled = torch.compile(model, backend="aot_eager")
    found = gradients(compiled, ids)
    for name, gradient in expected.items():
        assert_close(found[f"_orig_mod.{name}"], gradient)
