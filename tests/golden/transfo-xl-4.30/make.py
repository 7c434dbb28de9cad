"""Makes the files of this folder again. Needs the real package, which tests do not:

    python -m venv old && old/bin/pip install "transformers==4.30.2" "numpy<2" sacremoses torch safetensors
    old/bin/python tests/golden/transfo-xl-4.30/make.py

Three folders as `save_pretrained` writes them (the pickled pytorch_model.bin of one, safetensors of the others), each
with outputs.safetensors: what the model gave for two segments, from its default memory of zeros and from an empty one,
and generated.safetensors: greedy tokens after prompts of several lengths, with the log-probabilities of every step.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
import transformers  # type: ignore
from safetensors.torch import save_file
from transformers import TransfoXLConfig, TransfoXLLMHeadModel  # type: ignore

HERE = Path(__file__).resolve().parent
SMALL: dict[str, Any] = dict(d_model=16, n_head=2, d_head=8, d_inner=24, n_layer=2, dropout=0.0, dropatt=0.0)
CASES: dict[str, dict[str, Any]] = {
    "adaptive": dict(
        vocab_size=60,
        cutoffs=[12, 24, 44],
        d_embed=16,
        div_val=2,
        mem_len=8,
        clamp_len=5,
        same_length=True,
        untie_r=True,
    ),
    "one-table": dict(
        vocab_size=40,
        cutoffs=[10, 25],
        d_embed=12,
        div_val=1,
        mem_len=6,
        clamp_len=-1,
        same_length=False,
        untie_r=False,
    ),
    "pre-norm": dict(
        vocab_size=30, cutoffs=[], d_embed=16, div_val=1, mem_len=6, clamp_len=-1, same_length=False, pre_lnorm=True
    ),
}
PICKLED = "adaptive"
PROMPTS, NEW_TOKENS = (1, 5, 7, 11), 16


def model_of(case: dict[str, Any]) -> TransfoXLLMHeadModel:
    torch.manual_seed(7)
    model = TransfoXLLMHeadModel(TransfoXLConfig(**SMALL, **case)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


@torch.no_grad()
def outputs(model: TransfoXLLMHeadModel) -> dict[str, torch.Tensor]:
    result = {"input_ids": torch.randint(model.config.vocab_size, (2, 2, 7))}
    for start in ("zeros", "empty"):
        mems = None if start == "zeros" else [torch.zeros(0, 2, model.config.d_model)] * model.config.n_layer
        for index, ids in enumerate(result["input_ids"]):
            out = model(ids, mems=mems)
            shifted = model(ids, mems=mems, labels=ids)
            mems = out.mems
            result[f"{start}/{index}/log_probs"] = out.prediction_scores
            result[f"{start}/{index}/mems"] = torch.stack(out.mems)
            result[f"{start}/{index}/losses"] = shifted.losses
    return {name: tensor.contiguous().clone() for name, tensor in result.items()}


def make(name: str, case: dict[str, Any]) -> None:
    folder, model = HERE / name, model_of(case)
    model.save_pretrained(folder, safe_serialization=name != PICKLED)
    words = ["<eos>", "<unk>", *(f"w{i}" for i in range(case["vocab_size"] - 2))]
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    save_file(outputs(model), folder / "outputs.safetensors", {"transformers": transformers.__version__})
    for path in folder.glob("generation_config.json"):
        path.unlink()


def write_generated(name: str) -> None:
    """Continue prompts with `generate` of the saved model."""
    model = TransfoXLLMHeadModel.from_pretrained(HERE / name).eval()
    text = torch.randint(model.config.vocab_size, (1, 11), generator=torch.Generator().manual_seed(1))
    result = {}
    for length in PROMPTS:
        out = model.generate(
            text[:, :length],
            max_length=length + NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=-1,  # never ends
            output_scores=True,
            return_dict_in_generate=True,
        )
        result[f"{length}/tokens"] = out.sequences
        result[f"{length}/log_probs"] = torch.stack(out.scores, 1)
    save_file(result, HERE / name / "generated.safetensors", {"transformers": transformers.__version__})


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    os.umask(0o022)
    for name, case in CASES.items():
        make(name, case)
        write_generated(name)
