"""Compare with reference files of infinity-former's long-term memory: coefficients, densities, contexts, gradients.

The file has the new block and the queries of every step, and the points that sticky memories sampled; they are the
inputs of the module. Shapes: B batch, H heads, L queries, T rows of a block, N basis functions, S samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.interop.parity.reference import Reference
from mnemo.memory.infinite import Infinite
from mnemo.memory.infinite.modules import BINS, LongTerm, SignalAttention, bin_masses, make_basis

MIN_VARIANCE = {"gpt2": 1e-4, "sorting": 1e-6}
NAMES = {
    "proj_key.weight": "key.weight",
    "proj_value.weight": "value.weight",
    "attn_out.weight": "output.weight",
    "mu.weight": "mean.weight",
    "sigma.weight": "variance.weight",
    "mask_net.weight": "gate.weight",
    "mask_net.bias": "gate.bias",
}


def check(reference: Reference) -> None:
    module = load(reference)
    reference.take("proj_query.weight")  # a parameter that the published module never uses
    _check_basis(reference, module.config)
    loss = _check_steps(reference, module)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    for theirs, ours in NAMES.items():
        if f"grad.{theirs}" in reference:
            gradient = gradients[ours]
            reference.check("gradients", f"grad.{theirs}", torch.zeros(()) if gradient is None else gradient)


def load(reference: Reference) -> LongTerm:
    config = configuration(reference)
    heads, size = reference.setting("n_heads", int), reference.setting("head_size", int)
    if heads < 1 or size < 1:
        raise MnemoError(f"configuration: {heads} heads of {size}")
    module = LongTerm(config, heads * size, heads, size).double()
    names = {ours: reference.take(theirs) for theirs, ours in NAMES.items() if theirs in reference}
    expected = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    if {name: tuple(tensor.shape) for name, tensor in names.items()} != expected:
        raise MnemoError("the parameters are not those of the configuration")
    module.load_state_dict(names)
    return module


def configuration(reference: Reference) -> Infinite:
    setting, variant, mean = reference.setting, reference.config.get("variant"), reference.config.get("mu_0")
    if variant not in MIN_VARIANCE:
        raise MnemoError(f"configuration field 'variant' is {variant!r}")
    number = (int, float)
    pulled = mean is not None and (variant == "sorting" or mean <= 0)
    try:
        return Infinite(
            length=1,
            basis=setting("attn_num_basis", int),
            widths=tuple(float(width) for width in setting("basis_sigmas", list)),
            block=setting("length", int),
            samples=setting("nb_samples", int),
            tau=float(setting("tau", number)),
            ridge=float(setting("ridge_penalty", number)),
            min_variance=MIN_VARIANCE[variant],
            sticky=setting("sticky_memories", bool),
            gate="layer" if setting("mask", bool) else "none",
            kl_deviation=float(setting("sigma_0", number)),
            kl_mean=float(mean) if pulled and mean is not None else None,
            exact_padding=False,
        )
    except ValueError as error:
        raise MnemoError(f"configuration: {error}") from None


def _check_basis(reference: Reference, config: Infinite) -> None:
    basis = make_basis(config)
    named = {"basis_mu": basis.centres, "basis_sigma": basis.widths, "G": basis.first, "G_inf": basis.refit}
    for name, ours in (named | {"samples": basis.samples}).items():
        reference.check("regression", name, ours)


def _check_steps(reference: Reference, module: LongTerm) -> Tensor:
    """Run the module on the steps of the file, compare, and return the objective of the last step."""
    last = reference.setting("n_steps", int) - 1
    coefficients, attended, objective = None, None, None
    for step in range(last + 1):
        name = f"step{step}."
        block = reference.take(f"{name}k")
        old = (
            block.new_zeros(len(block), module.config.basis, block.shape[-1]) if coefficients is None else coefficients
        )
        fitted = torch.full((len(block),), step)
        points = _check_sticky(reference, module, name, attended)
        coefficients = module.fit(block, old.detach(), fitted, points, None)
        attended = module.attend(reference.take(f"{name}q"), coefficients)
        divergence = module.divergence(attended)
        reference.check("coefficients", f"{name}B", coefficients)
        densities = {"mu": attended.mean, "sigma_sq": attended.variance, "kl": divergence}
        for key, ours in densities.items():
            reference.check("densities", f"{name}{key}", ours)
        reference.check("contexts", f"{name}context", attended.context)
        objective = (attended.context, divergence)
    if attended is None or objective is None:
        raise MnemoError("configuration: no steps")
    reference.check("densities", f"step{last}.r", attended.basis)
    return (objective[0] * reference.take("probe")).sum() + objective[1].mean()


def _check_sticky(reference: Reference, module: LongTerm, name: str, before: SignalAttention | None) -> Tensor | None:
    """Compare the distribution of sticky samples, and return the points that the file sampled."""
    if not module.config.sticky or before is None:
        return None
    masses = bin_masses(before, None)
    reference.check("sticky", f"{name}sticky_probs", masses / masses.sum(-1, keepdim=True))
    bins, points = reference.take(f"{name}sticky_bins"), reference.take(f"{name}sticky_t")
    if not bool(((bins >= 0) & (bins < BINS) & (bins == bins.long())).all()):
        raise MnemoError(f"'{name}sticky_bins' holds no bins")
    reference.compare("sticky", f"{name}sticky_t", bins.double() / BINS, points)
    return points
