"""Rows with different sampling options choose the tokens that each would choose alone."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemo.inference.row_sampling import RowSampling, is_limited, sample_rows
from mnemo.inference.sampling import sample
from mnemo.inference.sampling_options import Sampling

OPTIONS = st.builds(
    Sampling,
    st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    st.none() | st.integers(1, 12),
    st.none() | st.sampled_from([0.05, 0.5, 0.9, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(OPTIONS, min_size=1, max_size=6), seed=st.integers(0, 999))
def test_each_row_chooses_as_it_would_alone(rows: list[Sampling], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(len(rows), 11, generator=generator)
    draws = torch.rand(len(rows), generator=generator, dtype=torch.float64)
    options = RowSampling.greedy(len(rows), logits.device)
    for row, sampling in enumerate(rows):
        options.set(row, sampling)
    alone = [int(sample(logits[row : row + 1], draws[row : row + 1], one)) for row, one in enumerate(rows)]
    assert sample_rows(logits, draws, options, any(map(is_limited, rows))).tolist() == alone
    assert sample_rows(logits, draws, options, True).tolist() == alone
