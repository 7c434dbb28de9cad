"""Training models with memory: which segments gradients reach, what a backward pass keeps, Trainer, peft, errors."""

from __future__ import annotations

import importlib.util
import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hf_backbones import CAUSAL, bert, gpt2, llama, neox, tokens
from helpers.tolerances import assert_close
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2ForSequenceClassification,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

from mnemo import MnemoError
from mnemo.hf import Curriculum, CurriculumCallback, add_memory, load_adapter, save_adapter
from mnemo.hf.memory_tokens.checks import try_out
from mnemo.hf.memory_tokens.options import MemoryConfig

ROOT = Path(__file__).resolve().parents[2]
SEGMENT = 4


def build(backbone: Any = llama, **options: Any) -> Any:
    options = dict(tokens=2, segment=SEGMENT) | options
    return add_memory(backbone().double(), **options)


def reached(model: Any, segments: int, scored: int) -> list[int]:
    """Segments that the loss of one segment sends gradient to."""
    x = tokens(1, SEGMENT * segments)
    embeddings = model.get_input_embeddings()(x).detach().requires_grad_()
    labels = torch.full_like(x, -100)
    inside = slice(SEGMENT * scored + 1, SEGMENT * (scored + 1))  # predicted by tokens of that segment
    labels[:, inside] = x[:, inside]
    model(inputs_embeds=embeddings, labels=labels).loss.backward()
    sizes = embeddings.grad.abs().amax((0, 2)).view(segments, SEGMENT).amax(1)
    return torch.nonzero(sizes).flatten().tolist()


@pytest.mark.parametrize("backward", ["plain", "checkpoint"])
@pytest.mark.parametrize("bptt", [0, 1, 2, 9, None])
def test_gradients_reach_exactly_the_segments_asked_for(bptt: int | None, backward: str) -> None:
    model = build(bptt=bptt, backward=backward)
    for scored in range(5):
        first = 0 if bptt is None else max(0, scored - bptt)
        assert reached(model, 5, scored) == list(range(first, scored + 1))


def test_tumbling_windows_reach_to_their_beginning() -> None:
    model = build(bptt=1, window="tumbling")
    assert [reached(model, 5, scored) for scored in range(5)] == [[0], [1], [1, 2], [3], [3, 4]]


def test_the_learned_memory_is_trained_where_a_window_begins_with_it() -> None:
    for bptt, trained in ((1, False), (2, True)):
        model, x = build(bptt=bptt, score=1), tokens(2, 3 * SEGMENT)
        model(input_ids=x, labels=x).loss.backward()
        gradient = model.memory_tokens.initial.grad
        assert (gradient is not None and bool(gradient.any())) == trained


def gradients(model: Any, x: Tensor, **labels: Any) -> dict[str, Tensor]:
    """Of the sum of all losses."""
    model.zero_grad()
    model(input_ids=x, num_items_in_batch=1, **labels).loss.backward()
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def test_all_losses_together_give_the_sum_of_their_gradients() -> None:
    model, x = build(gpt2, bptt=1), tokens(2, 4 * SEGMENT)  # Llama's norms are in single precision
    whole, total = gradients(model, x, labels=x), {}
    for column in range(1, x.shape[1]):
        labels = torch.full_like(x, -100)
        labels[:, column] = x[:, column]
        for name, value in gradients(model, x, labels=labels).items():
            total[name] = value if name not in total else total[name] + value
    assert whole.keys() == total.keys()
    for name, value in whole.items():
        assert_close(value, total[name], msg=name)


@pytest.mark.parametrize("window", ["sliding", "tumbling"])
def test_checkpoints_change_no_gradient(window: str) -> None:
    x = tokens(2, 5 * SEGMENT)
    torch.manual_seed(0)
    plain = build(gpt2, backward="plain", window=window)
    torch.manual_seed(0)
    flat = build(gpt2, backward="checkpoint", window=window)
    expected, got = gradients(plain, x, labels=x), gradients(flat, x, labels=x)
    assert expected.keys() == got.keys()
    assert all(torch.equal(value, got[name]) for name, value in expected.items())


@pytest.mark.parametrize("family", ["gpt2", "neox"])
def test_all_of_it_equals_a_plain_loop_around_the_backbone(family: str) -> None:
    model, x = build(CAUSAL[family], bptt=None), tokens(2, 3 * SEGMENT)
    got = gradients(model, x, labels=x)
    model.zero_grad()
    memory, logits = model.memory_tokens.initial.expand(2, -1, -1), []
    for part in x.split(SEGMENT, 1):
        rows = torch.cat([memory, model.get_input_embeddings()(part), memory], 1)
        out = model.backbone(inputs_embeds=rows, output_hidden_states=True)
        logits.append(out.logits[:, 2:-2])
        memory = out.hidden_states[-1][:, -2:]
    flat = torch.cat(logits, 1)[:, :-1].flatten(0, 1)
    torch.nn.functional.cross_entropy(flat, x[:, 1:].flatten(), reduction="sum").backward()
    for name, value in model.named_parameters():
        if value.grad is not None:
            assert_close(got[name], value.grad, msg=name)


def most_alive(segments: int, backward: str) -> int:
    """Outputs of feed-forward layers that are alive at the same time, at most, during a training step."""
    model, x = build(bptt=None, backward=backward), tokens(1, SEGMENT * segments)
    alive, most = 0, 0

    def born(_: Any, __: Any, output: Tensor) -> None:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        weakref.finalize(output, died)

    def died() -> None:
        nonlocal alive
        alive -= 1

    for layer in model.backbone.model.layers:
        layer.mlp.act_fn.register_forward_hook(born)
    model(input_ids=x, labels=x).loss.backward()
    return most


def test_a_backward_pass_needs_the_activations_of_one_segment() -> None:
    assert most_alive(3, "checkpoint") == most_alive(9, "checkpoint")
    assert most_alive(9, "plain") == 3 * most_alive(3, "plain")


def saved_bytes(segments: int, backward: str) -> int:
    """Count what the forward pass stores for the backward pass."""
    model, x = build(bptt=None, backward=backward), tokens(1, SEGMENT * segments)
    weights = {value.untyped_storage().data_ptr() for value in model.parameters()}
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        loss = model(input_ids=x, labels=x).loss
    assert loss.requires_grad
    return sum(kept.values())


def test_a_forward_pass_keeps_memories_only() -> None:
    memory = 2 * 16 * 8
    grown = saved_bytes(9, "checkpoint") - saved_bytes(3, "checkpoint")
    assert grown <= 6 * 4 * memory
    assert saved_bytes(9, "plain") - saved_bytes(3, "plain") > 100 * memory


def test_a_batch_without_labels_has_a_loss_of_zero() -> None:
    model, x = build(), tokens(2, 3 * SEGMENT)
    loss = model(input_ids=x, labels=torch.full_like(x, -100)).loss
    loss.backward()
    assert loss == 0 and not any(value.grad.any() for value in model.parameters() if value.grad is not None)


def test_losses_count_where_they_are_wanted() -> None:
    model, x = build(score=2).eval(), tokens(2, 3 * SEGMENT)
    logits = model(input_ids=x).logits[:, SEGMENT:-1]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, SEGMENT + 1 :].flatten())
    assert_close(model(input_ids=x, labels=x).loss, expected)
    assert model.train()(input_ids=x, labels=x).logits is None
    both = tokens(2, 3 * SEGMENT, seed=3)
    parts = [model(input_ids=part, labels=part, num_items_in_batch=44).loss for part in (x, both)]  # 11 labels a row
    assert_close(sum(parts, torch.tensor(0.0)), model(input_ids=torch.cat([x, both]), labels=torch.cat([x, both])).loss)


@pytest.mark.parametrize("side", ["left", "right"])
def test_parts_of_a_padded_batch_add_up_to_it(side: str) -> None:
    model, x = build(), tokens(4, 12)
    counts = torch.tensor([12, 11, 5, 9])[:, None]
    mask = (torch.arange(12) < counts) if side == "right" else (torch.arange(12) >= 12 - counts)
    labels = x.masked_fill(~mask, -100)
    whole, *parts = (
        gradients(model, x[rows], attention_mask=mask[rows].long(), labels=labels[rows])
        for rows in (slice(0, 4), slice(0, 2), slice(2, 4))
    )
    for name, value in whole.items():
        assert_close(parts[0][name] + parts[1][name], value)


@pytest.mark.parametrize("backward", ["plain", "checkpoint"])
def test_gradient_checkpointing_of_the_backbone_still_works(backward: str) -> None:
    model, x = build(backward=backward), tokens(2, 3 * SEGMENT)
    expected = gradients(model, x, labels=x)
    model.gradient_checkpointing_enable()
    assert model.backbone.is_gradient_checkpointing
    got = gradients(model.train(), x, labels=x)
    for name, value in expected.items():
        assert_close(got[name], value)


def test_encoders_cut_gradients_too() -> None:
    for bptt, reaches in ((0, 1), (1, 2), (2, 3)):
        model, x = add_memory(bert().double(), tokens=2, segment=SEGMENT, bptt=bptt), tokens(1, 3 * SEGMENT)
        embeddings: list[Tensor] = []

        def keep(_: Any, __: Any, output: Tensor, kept: list[Tensor] = embeddings) -> None:
            if output.requires_grad:
                output.retain_grad()
                kept.append(output)

        model.config.backward = "plain"
        model.get_input_embeddings().register_forward_hook(keep)
        model(input_ids=x, labels=torch.tensor([1])).loss.backward()
        assert [bool(value.grad is not None and value.grad.any()) for value in embeddings] == [True] * reaches


def test_a_curriculum_adds_segments() -> None:
    curriculum = Curriculum(((0, 1), (10, 2), (30, 5)))
    assert [curriculum.segments(step) for step in (0, 9, 10, 29, 30, 99)] == [1, 1, 2, 2, 5, 5]
    varied = Curriculum(((0, 4),), vary=True)
    assert {varied.segments(step) for step in range(50)} == {1, 2, 3, 4}
    assert [varied.segments(step) for step in range(9)] == [varied.segments(step) for step in range(9)]
    for wrong in ((), ((1, 1),), ((0, 1), (0, 2)), ((0, 0),)):
        with pytest.raises(MnemoError, match="curriculum"):
            Curriculum(wrong)


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    options: dict[str, Any] = dict(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        learning_rate=1e-2,
        max_steps=6,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        save_strategy="no",
    )
    return TrainingArguments(**(options | changes))


def samples(number: int = 8) -> Any:
    rows = tokens(number, 3 * SEGMENT).tolist()
    return [{"input_ids": row, "attention_mask": [1] * len(row), "labels": row} for row in rows]


def test_trainer_trains_saves_and_resumes(tmp_path: Path) -> None:
    model = add_memory(gpt2(), tokens=2, segment=SEGMENT, bptt=1)
    before = model.memory_tokens.initial.detach().clone()
    seen: list[Any] = []
    model.register_forward_pre_hook(lambda module, _: seen.append(module.num_segments or 3))
    callback = CurriculumCallback(Curriculum(((0, 1), (3, 3))))
    steps = arguments(tmp_path, save_strategy="steps", save_steps=3, gradient_accumulation_steps=2)
    trainer = Trainer(model=model, args=steps, train_dataset=samples(), eval_dataset=samples(), callbacks=[callback])
    first = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < first
    assert not torch.equal(model.memory_tokens.initial, before)
    assert seen[2:14] == [1] * 6 + [3] * 6 and model.num_segments is None
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-6")
    assert torch.equal(loaded.memory_tokens.initial, model.memory_tokens.initial)
    again = add_memory(gpt2(), tokens=2, segment=SEGMENT, bptt=1)
    Trainer(model=again, args=steps, train_dataset=samples(), callbacks=[callback]).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-3")
    )
    assert_close(again.memory_tokens.initial.detach(), model.memory_tokens.initial.detach())


def test_trainer_classifies(tmp_path: Path) -> None:
    rows = tokens(8, 3 * SEGMENT)
    data: Any = [{"input_ids": row.tolist(), "labels": int(row[0]) % 3} for row in rows]
    model = add_memory(bert(), tokens=2, segment=SEGMENT)
    trainer = Trainer(model=model, args=arguments(tmp_path, max_steps=12), train_dataset=data, eval_dataset=data)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    assert trainer.predict(data).predictions.shape == (8, 3)  # type: ignore[union-attr]


def with_lora(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    options = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["memory_tokens"])
    return peft.get_peft_model(model, options)


def test_lora_trains_the_memory_and_leaves_the_backbone(tmp_path: Path) -> None:
    model = with_lora(add_memory(llama(), tokens=2, segment=SEGMENT, mask="block"))
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    Trainer(model=model, args=arguments(tmp_path, max_steps=4), train_dataset=samples()).train()
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in changed} == {"default"}
    assert any("memory_tokens" in name for name in changed) and any("lora_B" in name for name in changed)
    x = tokens(1, 7)
    assert model.generate(input_ids=x, attention_mask=torch.ones_like(x), max_new_tokens=6).shape == (1, 13)


@pytest.mark.parametrize("lora", [False, True])
def test_an_adapter_folder_holds_what_was_trained(lora: bool, tmp_path: Path) -> None:
    backbone = llama().eval()
    backbone.save_pretrained(tmp_path / "backbone")
    model: Any = add_memory(AutoModelForCausalLM.from_pretrained(tmp_path / "backbone"), tokens=2, segment=SEGMENT)
    model = with_lora(model) if lora else model
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.requires_grad and ("lora" in name or "memory_tokens" in name):
                value.add_(torch.randn_like(value))
    save_adapter(model, tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "mnemo_adapter.json").read_text())["format_version"] == 1
    assert not list((tmp_path / "adapter").rglob("model.safetensors"))
    x = tokens(2, 11)
    expected = model.eval()(input_ids=x).logits
    for given in (None, backbone):
        assert torch.equal(load_adapter(tmp_path / "adapter", given).eval()(input_ids=x).logits, expected)
        backbone = llama()
    with pytest.raises(MnemoError, match="belongs to a backbone"):
        load_adapter(tmp_path / "adapter", neox())


def test_the_learned_memory_of_a_saved_adapter_is_the_one_in_use(tmp_path: Path) -> None:
    model = with_lora(add_memory(llama(), tokens=2, segment=SEGMENT))
    save_adapter(model, tmp_path / "adapter")
    (tmp_path / "adapter" / "mnemo_adapter.json").write_text("[]")
    with pytest.raises(MnemoError, match="no JSON object"):
        load_adapter(tmp_path / "adapter", llama())
    with pytest.raises(MnemoError, match="is missing"):
        load_adapter(tmp_path / "nowhere", llama())


SMALL: dict[str, Any] = dict(
    vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
)


def mistral(window: int) -> Any:
    return MistralForCausalLM(MistralConfig(**SMALL, num_key_value_heads=1, sliding_window=window))


def bloom() -> Any:
    return BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2))


def t5() -> Any:
    return T5ForConditionalGeneration(T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))


def gpt2_classifier() -> Any:
    return GPT2ForSequenceClassification(GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2))


def albert() -> Any:
    return AlbertForSequenceClassification(AlbertConfig(**SMALL, embedding_size=8))


def without_embeddings() -> Any:
    model = llama()
    model.get_input_embeddings = lambda: None
    return model


def untied() -> Any:
    model = gpt2()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def mamba() -> Any:
    return MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, initializer_range=1.0))


def with_body_options(change: Callable[[dict[str, Any]], None]) -> Any:
    """A model whose body gets other options than it is given."""
    model = llama()

    def changed(module: Any, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        change(options)
        return args, options

    model.model.register_forward_pre_hook(changed, with_kwargs=True)
    return model


def forgetful() -> Any:
    return with_body_options(lambda options: options.pop("past_key_values", None))


def without_earlier_values() -> Any:
    def empty(options: dict[str, Any]) -> None:
        for layer in getattr(options.get("past_key_values"), "layers", ()):
            if layer.is_initialized:
                layer.values = torch.zeros_like(layer.values)

    return with_body_options(empty)


def test_trying_a_model_out_draws_no_random_numbers() -> None:
    backbone, state = gpt2(resid_pdrop=0.2, attn_pdrop=0.2).train(), torch.random.get_rng_state()
    try_out(backbone, MemoryConfig(text_config=backbone.config, tokens=2, segment=4), causal=True)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(module.training for module in backbone.modules())


@pytest.mark.parametrize(
    ("backbone", "options", "message"),
    [
        (without_embeddings, {}, "does not accept input embeddings"),
        (gpt2, dict(segment=64, tokens=2), "need 68 positions, but the backbone has 64: use segment=60"),
        (gpt2, dict(segment=63, tokens=2, positions="tokens"), "need 65 positions"),
        (gpt2, dict(segment=8, tokens=40), "use fewer memory tokens"),
        (llama, dict(mask="bloc"), "unknown mask policy 'bloc'; did you mean 'block'"),
        (llama, dict(positions="rotary"), "unknown positions policy"),
        (llama, dict(align="centre"), "unknown align policy"),
        (llama, dict(window="rolling"), "unknown window policy"),
        (llama, dict(backward="flat"), "unknown backward policy"),
        (llama, dict(tokens=-1), "tokens=-1 must be"),
        (llama, dict(segment=0), "segment=0 must be"),
        (llama, dict(bptt=-1), "bptt=-1 must be"),
        (llama, dict(bptt=1.5), "bptt=1.5 must be"),
        (llama, dict(score=0), "score=0 must be"),
        (llama, dict(std=-1.0), "std=-1.0 must be"),
        (llama, dict(wrap=(1, 2)), "wrap is for encoders"),
        (untied, {}, "says that input and output embeddings are tied"),
        (lambda: mistral(8), dict(segment=8, tokens=2), "attends to the last 8 rows"),
        (lambda: llama().model, {}, "has no head"),
        (lambda: torch.nn.Linear(2, 2), {}, "expected a transformers model, not a Linear"),
        (lambda: "gpt2", {}, "expected a transformers model, not a str"),
        (mamba, {}, "MambaForCausalLM does not accept past_key_values"),
        (forgetful, {}, "stores no keys and values in past_key_values"),
        (without_earlier_values, {}, "gives other outputs with a cache than without"),
        (lambda: with_lora(add_memory(llama(), 2, 4)), {}, "add the memory first"),
        (lambda: add_memory(llama(), 2, 4), {}, "has memory already"),
        (lambda: BertForMaskedLM(BertConfig(**SMALL)), {}, "attends to later tokens"),
        (bloom, dict(positions="fixed"), "does not use position_ids"),
        (bloom, dict(mask="block"), "supports no 4-D mask"),
        (gpt2_classifier, {}, "for encoders"),
        (albert, {}, "8 wide and its hidden states 16"),
        (t5, {}, "encoder-decoder"),
        (bert, dict(mask="block"), "mask policies are for language models"),
        (bert, dict(score=2), "score is for language models"),
        (bert, dict(wrap=(1, 2), segment=2), "room for at least one more token"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_does_not_fit_is_one_clear_line(backbone: Any, options: Any, message: str) -> None:
    with pytest.raises(MnemoError, match=message) as error:
        add_memory(backbone(), **({"tokens": 2, "segment": 4} | options))
    assert "\n" not in str(error.value)


def test_relative_positions_work_as_they_are() -> None:
    model, x = add_memory(bloom().double().eval(), tokens=2, segment=SEGMENT), tokens(2, 11)
    with torch.no_grad():
        stepwise = model(input_ids=x[:, :6], use_cache=True)
        rest = model(input_ids=x[:, 6:], past_key_values=stepwise.past_key_values)
        assert_close(torch.cat([stepwise.logits, rest.logits], 1), model(input_ids=x).logits)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (dict(input_ids=tokens(1, 3), inputs_embeds=torch.zeros(1, 3, 16)), "give either input_ids or inputs_embeds"),
        (dict(), "give either input_ids or inputs_embeds"),
        (dict(input_ids=tokens(1, 3), attention_mask=torch.ones(1, 4)), "does not fit"),
        (dict(input_ids=tokens(1, 3), attention_mask=torch.zeros(1, 3)), "no tokens"),
        (dict(input_ids=tokens(1, 3), memory=torch.zeros(1, 3, 16)), "memory"),
        (dict(input_ids=tokens(1, 3), labels=tokens(1, 3), use_cache=True), "no labels"),
        (dict(input_ids=tokens(1, 3), output_attentions=True), "not kept"),
        (dict(input_ids=tokens(1, 9), labels=tokens(1, 5)), r"labels \(1, 5\) do not fit input of \(1, 9\)"),
        (dict(input_ids=torch.tensor([[1, 40]])), "token ids from 1 to 40 do not fit a vocabulary of 40"),
        (dict(input_ids=torch.tensor([[1, -3]]), use_cache=True), "token ids from -3 to 1 do not fit"),
        (dict(input_ids=tokens(1, 3), labels=torch.tensor([[-100, 50, 1]])), "labels from 1 to 50 do not fit"),
    ],
)
def test_wrong_calls_are_one_clear_line(call: dict[str, Any], message: str) -> None:
    with pytest.raises(MnemoError, match=message):
        build()(**call)


def test_an_empty_prompt_is_one_clear_line() -> None:
    with pytest.raises(MnemoError, match="cannot generate: the prompt is empty"):
        build().generate(tokens(1, 0), max_new_tokens=2)


def test_an_encoder_names_ids_beyond_its_vocabulary() -> None:
    with pytest.raises(MnemoError, match="token ids from 7 to 40 do not fit a vocabulary of 40"):
        add_memory(bert(), 2, 4)(input_ids=torch.tensor([[7, 40]]))


def test_a_folder_of_a_later_format_is_refused(tmp_path: Path) -> None:
    add_memory(llama(), tokens=2, segment=SEGMENT).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["format_version"] == 1
    (tmp_path / "config.json").write_text(json.dumps(config | {"format_version": 2}))
    with pytest.raises(MnemoError, match="format_version 2"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_the_recall_recipe_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("recall", ROOT / "examples" / "recall_with_memory.py")
    assert spec is not None and spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "recall", recipe)
    spec.loader.exec_module(recipe)
    first = recipe.accuracy(recipe.build("toy"), "toy", segments=1)
    model, found = recipe.train(steps=50, segments=2)
    assert list(found) == [1, 2, 3] and found[1] > first + 0.1
    assert model.config.segment == 9 and model.config.score == 1
