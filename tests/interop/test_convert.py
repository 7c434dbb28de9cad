"""Published weights as models of ours: every layout, every trap, and what is wrong with a file in one clear line."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import published_files as files
from helpers import published_xl as xl
from helpers.published_xl import Config, Parameters
from helpers.tolerances import PARITY, assert_close
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from mnemo.data.corpus import Split
from mnemo.errors import MnemoError
from mnemo.evaluation.perplexity import evaluate
from mnemo.interop.convert import formats, load, transformer_xl
from mnemo.interop.convert import weight_files as file_contents
from mnemo.interop.convert.load import ConvertedModel, UserOptions, load_model
from mnemo.interop.convert.save import write_published, write_run
from mnemo.interop.convert.to_published import comparable
from mnemo.interop.parity.reference import largest_error
from mnemo.model import Model, Output
from mnemo.recipes.recipe import EvalConfig

GOLDEN = Path(__file__).parents[1] / "golden"
REAL = sorted(path for path in (GOLDEN / "transfo-xl-4.30").iterdir() if path.is_dir())
SETTINGS: Config = {"pre_lnorm": False, "clamp_len": 0, "same_length": False}
WITHOUT_CONFIG: Config = {"mem_len": 5, "tgt_len": 4, **SETTINGS}


def convert(path: Path, **arguments: Any) -> ConvertedModel:
    return load_model(path, UserOptions(arguments=arguments))


def model_of(converted: ConvertedModel, **changes: Any) -> Model:
    model = transformer_xl.empty_model(replace(converted.config, **changes))
    model.load_state_dict(converted.weights, assign=True)
    return model.eval()


def config_of(**changes: Any) -> Config:
    return {**xl.DEFAULTS, **changes}


def losses_there(p: Parameters, config: Config, ids: list[Tensor], zeros: bool, seen: int) -> list[Tensor]:
    """Losses (B, L - 1) segment by segment, by the literal code; with same_length, `seen` keys at most."""
    start = config["mem_len"] if zeros else 0
    memory = [torch.zeros(start, 2, config["d_model"], dtype=torch.float64)] * (config["n_layer"] + 1)
    result = []
    for segment in ids:
        states = xl.hidden_states(p, {**config, "mem_len": seen}, segment.T, memory)
        scores = xl.log_probabilities(p, config, states[-1])[:-1]
        result.append(-scores.gather(-1, segment.T[1:, :, None]).squeeze(-1).T)
        memory = [torch.cat([m, h])[-config["mem_len"] :] for m, h in zip(memory, states, strict=True)]
    return result


def losses_here(model: Model, ids: list[Tensor], zeros: bool) -> list[Tensor]:
    state, result = (model.zeros if zeros else model.init)(2), []
    with torch.no_grad():
        for segment in ids:
            out, state = model(segment, state)
            result.append(model.loss(Output(out.hidden[:, :-1], {}), segment[:, 1:]))
    return result


def assert_same_losses(converted: ConvertedModel, p: Parameters, config: Config, *, zeros: bool, seen: int) -> None:
    torch.manual_seed(5)
    ids = [torch.randint(config["n_token"], (2, 6)) for _ in range(3)]
    model = model_of(converted, norm_eps=1e-5)
    pairs = zip(losses_here(model, ids, zeros), losses_there(p, config, ids, zeros, seen), strict=True)
    assert max(largest_error(ours, theirs) for ours, theirs in pairs) < PARITY


def golden_files() -> list[Path]:
    folders = [GOLDEN, *([Path(os.environ["MNEMO_GOLDEN"])] if "MNEMO_GOLDEN" in os.environ else [])]
    return [path for folder in folders for path in sorted((folder / "transformer-xl").glob("hf_*.safetensors"))]


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: path.stem)
def test_reference_files_of_hugging_face_load_through_convert(path: Path, tmp_path: Path) -> None:
    with safe_open(path, "pt") as file:
        about = json.loads((file.metadata() or {})["config"])
        values = {name: file.get_tensor(name) for name in file.keys()}
    files.save_config(tmp_path, about["hf_config"])
    given = {name.removeprefix("param/"): value for name, value in values.items() if name.startswith("param/")}
    files.save_tensors(tmp_path / "model.safetensors", given)
    model = model_of(convert(tmp_path))
    state = (model.zeros if about["initial_mems"] == "zeros" else model.init)(about["batch"])
    errors = {}
    for index in range(about["n_segments"]):
        key = f"seg{index}/"
        out, state = model(values[f"{key}input_ids"], state)
        errors[f"{key}loss"] = largest_error(model.loss(out, values[f"{key}target"]), values[f"{key}loss"])
        valid = int(state[0].length[0])
        memory = torch.stack([layer.hidden[:, layer.hidden.shape[1] - valid :] for layer in state]).transpose(1, 2)
        errors[f"{key}mems"] = largest_error(memory, values[f"{key}mems"])
        if f"{key}log_probs" in values:
            errors[f"{key}log_probs"] = largest_error(model.logits(out), values[f"{key}log_probs"])
    assert any("log_probs" in name for name in errors)
    assert max(errors.values()) < PARITY, errors


@pytest.mark.parametrize("folder", REAL, ids=lambda path: path.name)
def test_folders_of_the_real_package_agree_with_its_outputs(folder: Path) -> None:
    """Made by transformers 4.30.2: golden/transfo-xl-4.30/make.py makes them again."""
    model, outputs = model_of(convert(folder)), load_file(folder / "outputs.safetensors")
    for start, begin in (("zeros", model.zeros), ("empty", model.init)):
        state = begin(2)
        for index, ids in enumerate(outputs["input_ids"]):
            with torch.no_grad():
                out, state = model(ids, state)
                scores = torch.log_softmax(model.logits(out), -1)
                losses = model.loss(Output(out.hidden[:, :-1], {}), ids[:, 1:])
            assert_close(scores, outputs[f"{start}/{index}/log_probs"])
            # The package returns losses bin by bin, not in the order of tokens.
            assert_close(losses.flatten().sort()[0], outputs[f"{start}/{index}/losses"].flatten().sort()[0])
            valid = int(state[0].length[0])
            memory = torch.stack([layer.hidden[:, layer.hidden.shape[1] - valid :] for layer in state]).transpose(1, 2)
            assert_close(memory, outputs[f"{start}/{index}/mems"])


def test_zeros_and_an_empty_memory_are_not_the_same() -> None:
    outputs = load_file(GOLDEN / "transfo-xl-4.30" / "adaptive" / "outputs.safetensors")
    assert (outputs["zeros/0/log_probs"] - outputs["empty/0/log_probs"]).abs().max() > 0.1
    assert [known.start for known in formats.FORMATS if known.name in ("authors", "hf", "tf")] == [
        "empty",
        "zeros",
        "zeros",
    ]


AUTHORS: dict[str, tuple[Config, Config]] = {
    "plain": ({}, {}),
    "clamped": (
        {"clamp_len": 3, "same_length": True, "pre_lnorm": True},
        {"clamp_len": 3, "same_length": True, "pre_lnorm": True},
    ),
    "adaptive": (files.ADAPTIVE, {}),
    "untied": ({"tie_weight": False}, {}),
    "untied-projections": ({**files.ADAPTIVE, "tie_projs": [False] * 3}, {}),
    "one-table": ({**files.ADAPTIVE, "div_val": 1, "d_embed": 6}, {"cutoffs": [5, 11]}),
    "narrow": ({"d_embed": 6}, {}),
    "shaw": ({"attn_type": 1}, {}),
    "sinusoidal": ({"attn_type": 2, "mem_len": 0}, {"n_head": 2}),
    "learned": ({"attn_type": 3, "mem_len": 0}, {}),
    "single-bin": ({"div_val": 2}, {}),
}


@pytest.mark.parametrize("case", AUTHORS)
def test_the_authors_configuration_is_inferred_from_shapes(case: str, tmp_path: Path) -> None:
    changes, flags = AUTHORS[case]
    config = config_of(**changes)
    p = files.full(config)
    path = files.save_tensors(tmp_path / "weights.safetensors", p)
    found = convert(path, mem_len=config["mem_len"], tgt_len=config["tgt_len"], **(SETTINGS | flags))
    expected = transformer_xl.config_from_authors(config)
    assert comparable(found.config) == comparable(expected)
    theirs = transformer_xl.import_weights(p, expected, transformer_xl.authors_tensor_map)
    assert found.weights.keys() == theirs.keys()
    assert all(torch.equal(found.weights[name], theirs[name]) for name in theirs)


def authors_golden_files() -> list[Path]:
    """Of models whose memory the constructor's lengths describe."""
    folders = [GOLDEN, *([Path(os.environ["MNEMO_GOLDEN"])] if "MNEMO_GOLDEN" in os.environ else [])]
    found = [path for folder in folders for path in sorted((folder / "transformer-xl").glob("[01]*.safetensors"))]
    return [path for path in found if not path.name.startswith(("08f", "15"))]


@pytest.mark.parametrize("path", authors_golden_files(), ids=lambda path: path.stem)
def test_state_dicts_of_the_authors_code_come_back_name_for_name(path: Path, tmp_path: Path) -> None:
    with safe_open(path, "pt") as file:
        config = json.loads((file.metadata() or {})["config"])
        theirs = {
            name.removeprefix("param/"): file.get_tensor(name) for name in file.keys() if name.startswith("param/")
        }
    flags = {name: config[name] for name in ("mem_len", "tgt_len", "clamp_len", "same_length", "pre_lnorm")}
    if config["attn_type"] == 2:
        flags["n_head"] = config["n_head"]
    if config["cutoffs"] and config["div_val"] == 1:
        flags["cutoffs"] = config["cutoffs"]
    found = convert(files.save_tensors(tmp_path / "weights.safetensors", theirs), **flags)
    assert comparable(found.config) == comparable(transformer_xl.config_from_authors(config))
    write_published(found, "authors", tmp_path / "there")
    again = torch.load(tmp_path / "there" / "state_dict.pt", weights_only=True)
    assert again.keys() == theirs.keys()
    assert all(torch.equal(again[name], value) for name, value in theirs.items() if "inv_freq" not in name)


@pytest.mark.parametrize("missing", SETTINGS)
def test_settings_that_no_shape_shows_are_asked_for(missing: str, tmp_path: Path) -> None:
    path = files.save_tensors(tmp_path / "weights.safetensors", files.full(config_of()))
    given = {name: value for name, value in WITHOUT_CONFIG.items() if name != missing}
    flag = {"pre_lnorm": "--norm", "clamp_len": "--clamp", "same_length": "--no-same-length"}[missing]
    with pytest.raises(MnemoError, match=f"do not say how they were trained; also give {flag}"):
        convert(path, **given)


def test_a_score_from_zeros_is_the_one_of_literal_code(tmp_path: Path) -> None:
    config = config_of()
    p = files.full(config)
    model = model_of(convert(files.hugging_face(tmp_path, config, p)))
    ids = torch.randint(config["n_token"], (13,))
    split = Split("valid", ids.numpy(), None, 13, 13, 1)
    score = evaluate(model, split, EvalConfig(batch=1), segment=12, start="zeros")
    (there,) = losses_there(p, config, [torch.stack([ids, ids])], zeros=True, seen=5)
    assert score.loss == pytest.approx(float(there[0].mean()), abs=PARITY)


@pytest.mark.parametrize("changes", [{}, files.ADAPTIVE], ids=["plain", "adaptive"])
def test_cluster_rows_are_reversed_from_the_authors_and_not_from_hugging_face(changes: Config, tmp_path: Path) -> None:
    config = config_of(**changes)
    p = files.full(config)
    path = files.save_tensors(tmp_path / "weights.safetensors", p)
    assert_same_losses(convert(path, **WITHOUT_CONFIG), p, config, zeros=False, seen=5)
    folder = files.hugging_face(tmp_path / "hf", config, p)
    assert_same_losses(convert(folder), p, config, zeros=True, seen=5)


@pytest.mark.parametrize("untie", [False, True])
def test_biases_of_hugging_face_are_one_pair_or_one_a_layer(untie: bool, tmp_path: Path) -> None:
    config = config_of(untie_r=untie)
    p = files.full(config)
    converted = convert(files.hugging_face(tmp_path, config, p))
    assert converted.weights["positions.u"].shape[0] == (config["n_layer"] if untie else 1)
    assert_same_losses(converted, p, config, zeros=False, seen=5)


@pytest.mark.parametrize("tie_projs", [[False, True, True], [-1, 1, 1], [None, True, True]])
def test_ties_may_be_written_as_numbers(tie_projs: list[Any], tmp_path: Path) -> None:
    config = config_of(**files.ADAPTIVE)
    converted = convert(files.hugging_face(tmp_path, config, files.full(config), tie_projs=tie_projs))
    assert converted.config.embedding.ties() == (False, True, True)


def test_projections_are_tied_as_proj_share_all_but_first_says(tmp_path: Path) -> None:
    config = config_of(**{**files.ADAPTIVE, "tie_projs": [False] * 3})
    folder = files.hugging_face(tmp_path, config, files.full(config), tie_projs=None, proj_share_all_but_first=False)
    assert convert(folder).config.embedding.ties() == (False, False, False)
    change_config(folder, {"proj_share_all_but_first": True})
    with pytest.raises(MnemoError, match="tied but differ"):
        convert(folder)


NVIDIA: dict[str, Config] = {
    "plain": {},
    "same-length": {"same_length": True},
    "adaptive": files.ADAPTIVE,
    "one-table": {**files.ADAPTIVE, "div_val": 1, "d_embed": 6},
    "untied": {**files.ADAPTIVE, "tie_weight": False, "tie_projs": [False, False, False]},
}


@pytest.mark.parametrize("case", NVIDIA)
def test_nvidias_weights_give_the_losses_of_their_rules(case: str, tmp_path: Path) -> None:
    config = config_of(**NVIDIA[case])
    p = files.full(config)
    checkpoint = files.nvidia(config, p)
    files.save_config(tmp_path, checkpoint["model_config"])
    files.save_tensors(tmp_path / "model.safetensors", checkpoint["model_state"])
    converted = convert(tmp_path)
    assert converted.format == "nvidia"
    assert_same_losses(converted, p, config, zeros=False, seen=config["mem_len"] + 1)


TENSORFLOW: dict[str, Config] = {
    "plain": {},
    "untied-biases": {"untie_r": True},
    "same-length": {"same_length": True, "clamp_len": 4, "mem_len": 7},
    "adaptive": files.ADAPTIVE,
    "untied-projections": {**files.ADAPTIVE, "tie_projs": [False] * 3},
    "one-table": {**files.ADAPTIVE, "div_val": 1, "d_embed": 6},
}


@pytest.mark.parametrize("case", TENSORFLOW)
def test_tensorflow_variables_give_the_losses_of_their_rules(case: str, tmp_path: Path) -> None:
    config = config_of(**TENSORFLOW[case])
    p = files.full(config)
    path = files.tensorflow(tmp_path / "model.npz", config, p)
    flags = {name: config[name] for name in ("mem_len", "clamp_len", "same_length")}
    converted = convert(path, **flags)
    assert (converted.format, converted.config.norm_eps) == ("tf", 1e-12)
    assert_same_losses(converted, p, config, zeros=True, seen=config["mem_len"] + 1)


def test_a_tensorflow_bin_as_wide_as_the_model_may_have_no_projection(tmp_path: Path) -> None:
    config = config_of(**{**files.ADAPTIVE, "tie_projs": [False] * 3})
    names = ("word_emb.emb_projs.0", "crit.out_projs.0")
    p = files.full(config) | {name: torch.eye(8, dtype=torch.float64) for name in names}
    path = files.tensorflow(tmp_path / "model.npz", config, p, leave_out=names)
    assert_same_losses(convert(path, mem_len=5), p, config, zeros=True, seen=5)


def test_the_factorised_tensorflow_model_projects_back_with_the_input_projection(tmp_path: Path) -> None:
    config = config_of(d_embed=6)
    p = files.full(config)
    path = files.tensorflow(tmp_path / "model.npz", config, p, leave_out=("crit.out_projs.0",))
    there = p | {"crit.out_projs.0": p["word_emb.emb_projs.0"]}
    assert_same_losses(convert(path, mem_len=5), there, config, zeros=True, seen=5)


def written_names(model: ConvertedModel, folder: Path) -> set[str]:
    """Those of the state dict for the code that the model came from."""
    write_published(model, model.format, folder)
    return set(torch.load(folder / "state_dict.pt", weights_only=True))


def test_the_state_dicts_of_lamemo_and_rmt_are_known(tmp_path: Path) -> None:
    lamemo = load_file(GOLDEN / "lamemo" / "lamemo_mem_gt_tgt.safetensors")
    weights = {name: value for name, value in lamemo.items() if not name.startswith(("seg", "grad"))}
    found = convert(files.save_tensors(tmp_path / "lamemo.safetensors", weights), mem_len=12, **SETTINGS)
    assert (found.format, type(found.config.memory.long).__name__) == ("lamemo", "Lookahead")
    assert written_names(found, tmp_path / "lamemo") - weights.keys() == {"crit.out_layers.0.weight"}
    tokens = load_file(GOLDEN / "rmt" / "rmt_nocache_bptt0.safetensors")
    weights = {name.removeprefix("weights/"): value for name, value in tokens.items() if name.startswith("weights/")}
    path = files.save_tensors(tmp_path / "rmt.safetensors", weights)
    with pytest.raises(MnemoError, match="--mem-at-end is needed"):
        convert(path, mem_len=0, **SETTINGS)
    found = convert(path, mem_len=0, mem_at_end=True, **SETTINGS)
    assert found.config.tokens is not None
    assert (found.format, found.config.tokens.num, found.config.tokens.write) == ("rmt", 3, True)
    assert written_names(found, tmp_path / "rmt") == weights.keys()


ROUND_TRIPS: list[tuple[str, Config]] = [
    ("authors", {**files.ADAPTIVE, "clamp_len": 3}),
    ("authors", {"attn_type": 1}),
    ("hf", {**files.ADAPTIVE, "untie_r": True, "same_length": True}),
    ("nvidia", {**files.ADAPTIVE, "same_length": True}),
    ("tf", {**files.ADAPTIVE, "untie_r": True, "same_length": True}),
]


@pytest.mark.parametrize(("target", "changes"), ROUND_TRIPS, ids=[target for target, _ in ROUND_TRIPS])
def test_to_other_code_and_back_is_bitwise(target: str, changes: Config, tmp_path: Path, monkeypatch: Any) -> None:
    config = config_of(**changes)
    p = files.full(config)
    flags = {name: config[name] for name in ("mem_len", "clamp_len", "same_length", "tgt_len")}
    if target == "tf":
        source = files.tensorflow(tmp_path / "source.npz", config, p)
    else:
        source = files.hugging_face(tmp_path / "source", config, p)
        flags = {}
    if config["attn_type"]:
        source, flags = files.save_tensors(tmp_path / "source.safetensors", p), {"mem_len": 5, **SETTINGS}
    first = convert(source, **flags)
    write_run(first, tmp_path / "run", source=source, corpus="none", corpus_info={"unit": None})
    ours = convert(tmp_path / "run")
    assert ours.config == first.config
    write_published(ours, target, tmp_path / "there")
    if (tmp_path / "there" / "state_dict.pt").exists() or target == "nvidia":
        _without_a_process(monkeypatch)
    again = convert(tmp_path / "there", **({} if target != "tf" else flags))
    assert again.format == target
    assert comparable(again.config) == comparable(first.config)
    assert again.weights.keys() == first.weights.keys()
    assert all(torch.equal(again.weights[name], first.weights[name]) for name in first.weights)


def _without_a_process(monkeypatch: Any) -> None:
    """Our own files need no other process in tests: starting one takes seconds."""
    from mnemo.interop.convert import restricted_loader
    from mnemo.interop.convert import weight_files as module

    def read_here(path: Path) -> Any:
        tensors, rest = restricted_loader.split(torch.load(path, weights_only=True))
        return module.WeightsFile(tensors=tensors, key=rest["key"], others=rest["others"])

    monkeypatch.setattr(module, "_load_pickle", read_here)


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        ("authors", {"untie_r": True}, "u and v differ by layer"),
        ("tf", {}, "cannot represent norm_eps"),
        ("rmt", {}, "no memory tokens"),
        ("lamemo", {}, "cannot represent memory"),
    ],
)
def test_what_other_code_has_no_word_for_is_refused(target: str, changes: Config, message: str, tmp_path: Path) -> None:
    config = config_of(**changes)
    model = convert(files.hugging_face(tmp_path / "hf", config, files.full(config)))
    with pytest.raises(MnemoError, match=message):
        write_published(model, target, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("changes", "flags", "message"),
    [
        ({}, {}, "--memory is needed"),
        ({}, {"mem_len": 5, "n_head": 3}, r"--num-heads 3 does not fit the weights, which have 2"),
        ({"attn_type": 2, "mem_len": 0}, {"mem_len": 0}, "--num-heads is needed"),
        ({"attn_type": 2, "mem_len": 0}, {"mem_len": 0, "n_head": 3}, "--num-heads 3 does not fit"),
        ({**files.ADAPTIVE, "div_val": 1}, {"mem_len": 5}, "--cutoffs is needed"),
        ({**files.ADAPTIVE, "div_val": 1}, {"mem_len": 5, "cutoffs": [5]}, "--cutoffs 5 does not fit"),
        (files.ADAPTIVE, {"mem_len": 5, "cutoffs": [5, 12]}, r"--cutoffs \[5, 12\] does not fit"),
        ({"attn_type": 1}, {"mem_len": 50}, "do not fit the table of 9 positions"),
    ],
)
def test_flags_are_asked_for_and_checked(changes: Config, flags: Config, message: str, tmp_path: Path) -> None:
    path = files.save_tensors(tmp_path / "weights.safetensors", files.full(config_of(**changes)))
    with pytest.raises(MnemoError, match=message):
        convert(path, **flags)


def test_an_unknown_layout_lists_what_was_found_and_expected(tmp_path: Path) -> None:
    path = files.save_tensors(tmp_path / "model.safetensors", {f"gpt.layer.{i}": torch.zeros(2) for i in range(50)})
    with pytest.raises(MnemoError) as error:
        convert(path)
    text = str(error.value)
    assert "found 50 tensors: 'gpt.layer.0', 'gpt.layer.1', 'gpt.layer.10', ...; expected" in text
    assert "'word_emb.emb_layers.0.weight'" in text and len(text) < 1200


def change_config(folder: Path, changes: Config) -> None:
    files.save_config(folder, json.loads((folder / "config.json").read_text()) | changes)


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text((folder / "config.json").read_text()[:40])


def another_type(folder: Path) -> None:
    files.save_config(folder, {"model_type": "bert"})


def another_vocabulary(folder: Path) -> None:
    (folder / "vocab.json").write_text(json.dumps(["a", "b"]))


def only_a_pickled_vocabulary(folder: Path) -> None:
    (folder / "vocab.bin").write_bytes(b"\x80\x04N.")


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def sampled(folder: Path) -> None:
    change_config(folder, {"sample_softmax": 100})


def larger_vocabulary(folder: Path) -> None:
    change_config(folder, {"vocab_size": 99})


def deep(folder: Path) -> None:
    change_config(folder, {"n_layer": "2"})


def wrong_ties(folder: Path) -> None:
    change_config(folder, {"tie_projs": ["yes"]})


def negative(folder: Path) -> None:
    change_config(folder, {"mem_len": -5})


def wider(folder: Path) -> None:
    change_config(folder, {"d_inner": 99})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json beside the weights"),
        (break_config, "config.json is damaged or truncated"),
        (another_type, "type 'bert', not 'transfo-xl'"),
        (another_vocabulary, "has 2 symbols, but the weights have 13"),
        (only_a_pickled_vocabulary, "CVE-2023-6730"),
        (cut_weights, "is truncated"),
        (sampled, "sample_softmax 100"),
        (larger_vocabulary, "'n_token' of the configuration 99 does not fit the weights, which have 13"),
        (wider, "'d_inner' of the configuration 99 does not fit the weights, which have 10"),
        (deep, "'n_layer' of the configuration is '2'"),
        (negative, "length -5"),
        (wrong_ties, "'tie_projs' of the configuration are"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_line(damage: Any, message: str, tmp_path: Path) -> None:
    config = config_of(n_token=13)
    folder = files.hugging_face(tmp_path, config, files.full(config))
    damage(folder)
    with pytest.raises(MnemoError, match=message) as error:
        convert(folder)
    assert "\n" not in str(error.value)


def damaged(tensor: Tensor) -> list[Tensor | None]:
    """The tensor missing, without dimensions, with one more, one row longer, and of whole numbers."""
    return [None, tensor.sum(), tensor[None], torch.cat([tensor, tensor[:1]]), tensor.long()]


@pytest.mark.parametrize("kind", ["authors", "hf", "nvidia", "tf", "shaw"])
def test_no_damage_to_a_tensor_is_an_internal_error(kind: str, tmp_path: Path) -> None:
    config = config_of(n_layer=1, **({"attn_type": 1} if kind == "shaw" else files.ADAPTIVE))
    p = files.full(config)
    if kind == "hf":
        tensors = load_file(files.hugging_face(tmp_path, config, p) / "model.safetensors")
    elif kind == "tf":
        tensors = file_contents.load_weights(files.tensorflow(tmp_path / "model.npz", config, p)).tensors
    else:
        tensors = files.nvidia(config, p)["model_state"] if kind == "nvidia" else p
    given, path = UserOptions(arguments={"mem_len": 5}), tmp_path / "model.safetensors"
    refused = 0
    for name in tensors:
        for broken in damaged(tensors[name]):
            rest = {other: tensor for other, tensor in tensors.items() if other != name}
            try:
                content = file_contents.WeightsFile(tensors=rest if broken is None else {**rest, name: broken})
                load.convert(formats.recognise(content.tensors, "it"), content, path, given)
            except MnemoError:
                refused += 1
    assert refused > 3 * len(tensors)


@pytest.mark.parametrize("div_val", [3, 4])
def test_a_div_val_that_gives_the_same_widths_is_kept(div_val: int, tmp_path: Path) -> None:
    config = config_of(n_token=17, cutoffs=[5], div_val=div_val, d_embed=4, tie_projs=[False, True])
    assert convert(files.hugging_face(tmp_path, config, files.full(config))).config.embedding.div_val == div_val


def objects(path: Path) -> None:
    np.savez(path, a=np.array([{}], dtype=object))


def cut(path: Path) -> None:
    np.savez(path, a=np.zeros(100))
    path.write_bytes(path.read_bytes()[:-60])


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.npz", objects, "pickled objects"),
        ("a.npz", cut, "is damaged"),
        ("model.ckpt.index", Path.touch, "TensorFlow checkpoint"),
        ("vocab.bin", Path.touch, "json.dump"),
        ("corpus.bin", Path.touch, "CVE-2023-7018"),
        ("notes.txt", Path.touch, "not a file of weights"),
        ("empty", Path.mkdir, "neither a run of mnemo nor a folder"),
        ("none.pt", lambda path: None, "does not exist"),
    ],
)
def test_files_of_other_kinds_are_refused(name: str, make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path / name)
    with pytest.raises(MnemoError, match=message):
        convert(tmp_path / name)


def test_half_precision_becomes_single_precision_exactly(tmp_path: Path) -> None:
    config = config_of()
    half = {name: value.half() for name, value in files.full(config).items()}
    found = convert(files.save_tensors(tmp_path / "w.safetensors", half), **WITHOUT_CONFIG)
    assert torch.equal(found.weights["softmax.biases.0"], half["crit.out_layers.0.bias"].float())
