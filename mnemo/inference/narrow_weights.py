"""Weights of 16 or 8 bits for generating on a CPU.

A token of one text reads every weight once, so its time is that of the bytes. The matrices of the layers are rounded to
bf16, or to int8 with one scale for each output; the product reads them in this form. Embeddings, softmax, positions,
norms and biases stay as they are, and so do the states, so that memories fit models with either kind of weights.

Shapes: N outputs, K inputs.
"""

from __future__ import annotations

import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.errors import MnemoError, unknown
from mnemo.inference.weight_formats import WEIGHT_FORMATS, WeightFormat
from mnemo.model import Model

FEW_ROWS = 16
"""Most rows for which the product with int8 weights is fastest; for more, the weights are widened to bf16 first."""
VECTOR = 32
"""PyTorch's product with int8 weights reads this many inputs at a time, without checking for the end of a row."""
LARGEST = 127
"""Largest int8 weight, in either direction."""


class Bf16Linear(nn.Module):
    """A linear layer with a weight in bf16; inputs and outputs have any type, biases stay in fp32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.narrow = nn.Parameter(linear.weight.detach().to(torch.bfloat16), requires_grad=False)
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """The rounded weight (N, K) in fp32, for operations other than this layer's."""
        return self.narrow.float()

    def forward(self, x: Tensor) -> Tensor:
        return _with_bias(F.linear(x.to(torch.bfloat16), self.narrow), self.bias, x.dtype)


class Int8Linear(nn.Module):
    """A linear layer with a weight in int8; inputs are rounded to bf16, biases stay in fp32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        # The scale is rounded to bf16 first, because the product takes it in this type.
        scale = (weight.abs().amax(1) / LARGEST).to(torch.bfloat16)
        steps = weight / scale.float().clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        narrow = steps.round().clamp(-LARGEST, LARGEST).to(torch.int8)
        self.narrow = nn.Parameter(narrow, requires_grad=False)
        self.scale: Tensor
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """The rounded weight (N, K) in fp32, for operations other than this layer's."""
        return self.narrow.float() * self.scale.float()[:, None]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.to(torch.bfloat16).reshape(-1, x.shape[-1])
        if len(rows) <= FEW_ROWS and rows.shape[1] % VECTOR == 0:
            product = torch.ops.aten._weight_int8pack_mm(rows, self.narrow, self.scale)
        else:
            product = F.linear(rows, self.narrow.to(torch.bfloat16) * self.scale[:, None])
        return _with_bias(product.view(*x.shape[:-1], -1), self.bias, x.dtype)


def _with_bias(product: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    product = product.to(dtype)
    return product if bias is None else product + bias


LINEARS: dict[WeightFormat, type[Bf16Linear] | type[Int8Linear]] = {"bf16": Bf16Linear, "int8": Int8Linear}


def obstacle(weights: WeightFormat, device: torch.device) -> str | None:
    """Why a model cannot use such weights on a device; None if it can."""
    if weights == "fp32":
        return None
    if device.type != "cpu":
        return "it is for CPUs; on a GPU, use bf16 precision"
    return None if has_bf16_products() else "this processor has no products in bf16"


def has_bf16_products() -> bool:
    """Whether products in bf16 are faster than in fp32. With AVX-512 alone, oneDNN only emulates them."""
    if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return False
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@torch.no_grad()
def with_narrow_weights(model: Model, weights: WeightFormat) -> Model:
    """A copy of the model for generating, with the matrices of its layers in another format; fp32: the model itself.

    The copy has the fingerprint of the model, because memories are interchangeable between them, up to rounding.
    """
    if weights not in WEIGHT_FORMATS:
        raise unknown("format of weights", weights, WEIGHT_FORMATS)
    refused = obstacle(weights, model.device)
    if refused is not None:
        raise MnemoError(f"weights in {weights}: {refused}")
    if weights == "fp32":
        return model
    other = model.variant()
    other.made_from = model.fingerprint()
    linears = {name: module for name, module in other.stages.named_modules() if type(module) is nn.Linear}
    if not linears:
        raise MnemoError(f"weights in {weights}: the model has no layer that attends")
    for name, linear in linears.items():
        other.stages.set_submodule(name, LINEARS[weights](linear))
    return other
