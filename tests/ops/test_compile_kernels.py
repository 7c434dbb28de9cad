from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.registers import overwritten

pytest.importorskip("triton")
KERNELS = {
    "prepare_kernel",
    "position_kernel",
    "forward_kernel",
    "delta_kernel",
    "key_value_kernel",
    "product_kernel",
    "query_kernel",
    "sum_kernel",
    "_attend_part",
    "_put_together",
    "_advance",
    "add_norm_kernel",
    "add_norm_backward_kernel",
    "sum_rows_kernel",
    "activation_kernel",
    "activation_backward_kernel",
    "place_heads_kernel",
    "place_heads_backward_kernel",
    "direction_kernel",
    "join_norms_kernel",
    "normalise_kernel",
    "step_kernel",
    "adam_kernel",
    "_take_likeliest",
    "_look_up",
    "_project_row",
    "_project_rows",
}


CARDS = {80: "A100", 89: "RTX 4090, L40S", 90: "H100, H200", 120: "RTX 5090"}
ALL_VARIANTS = [pytest.param(capability, ["all"], marks=pytest.mark.thorough) for capability in CARDS]


@pytest.mark.parametrize(("capability", "variants"), [(90, []), *ALL_VARIANTS])
def test_every_kernel_compiles_and_fits_the_card(
    capability: int, variants: list[str], request: pytest.FixtureRequest
) -> None:
    """Triton keeps compiled kernels by their source in pytest's cache: unchanged ones are not compiled again."""
    cache = request.config.cache.mkdir("triton")  # type: ignore[union-attr]
    own = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "helpers.compile_kernels", str(capability), *variants],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        env=os.environ | own,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert set(done.stdout.split()) == KERNELS


LOOP = """
LBB2:
--:-:-:-:1	HGMMA.64x64x16.F32.BF16 R24, R88, gdesc[UR8], RZ, !UPT;
--:-:-:-:1	FADD R88, R24, -R17;
--:-:-:-:1	HGMMA.64x64x16.F32.BF16 R56, R88, gdesc[UR8].tnspB, R56, gsb0;
{restored}
--:-:-:-:5	@!P1 BRA LBB2;
"""


def test_a_product_that_reads_another_ones_operand_in_the_next_round_is_found() -> None:
    """What ptxas made of the queries of look-ahead, shortened: the sum in R88 is gone after the first round."""
    assert overwritten(LOOP.format(restored="")) == ["R56 and R24 are made of the same R88"]
    assert overwritten(LOOP.format(restored="--:-:-:-:1	MOV R90, R12;")) == []
    assert overwritten(LOOP.replace("R24, R88", "R24, gdesc[UR4]").format(restored="")) == []
