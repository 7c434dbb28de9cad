"""Triton kernels of the forward pass.

Position scores X = (q + w) r^T belong to pairs of query and distance; softmax needs pairs of query and key. Both are
views of one buffer, see `score_layout.py`: `p` is a column of it, `m` a row of one residue.

Shapes: B batch, H heads, L queries, K keys, D head size, BM x BN tiles of queries x keys.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
# Triton kernels are not Python to a type checker.

from __future__ import annotations

import math

import triton
import triton.language as tl

LN2, LOG2E = tl.constexpr(math.log(2)), tl.constexpr(1 / math.log(2))
LARGEST = tl.constexpr(60000.0)
"""Largest stored score, for 16 bits: beyond it a softmax is one-hot anyway"""


@triton.jit
def visible(rows, keys, low, high, num_keys, offset, window, SPANS: tl.constexpr, WINDOW: tl.constexpr):
    """Which (BM, BN) pairs attend. `low`, `high`: bounds of the keys, a number or one for every row."""
    if SPANS:
        seen = (keys >= low[:, None]) & (keys < high[:, None])
    else:
        seen = (keys <= rows + offset) & (keys >= low) & (keys < num_keys)
        if WINDOW:
            seen = seen & (keys > rows + offset - window)
    return seen


@triton.jit
def key_range(first_row, low, high, num_keys, offset, window, SPANS: tl.constexpr, WINDOW: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Tiles of keys that a tile of queries sees, [begin, end); those of [clear, mixed) need no mask."""
    if SPANS:
        end = tl.minimum(tl.max(high), num_keys)
        begin, clear, mixed = tl.min(low) // BN * BN, end, end  # of all tiles, for they depend on rows
    else:
        end = tl.minimum(num_keys, first_row + BM + offset)
        first = tl.maximum(low, 0)
        clear = first
        if WINDOW:
            first = tl.maximum(first, first_row + offset - window + 1)
            clear = tl.maximum(clear, first_row + BM + offset - window)
        begin = tl.minimum(first, end) // BN * BN
        mixed = tl.minimum(num_keys, first_row + offset + 1) - BN + 1
    return begin, clear, mixed, end


SORTED = tl.constexpr(512)
"""Last programs of a launch that run by length: about as many as run at once"""


@triton.jit
def tile_of_program(num_tiles):
    """Tile and sequence of a program: sequence by sequence, so that the tiles of one share the cache, and the last ones
    tile by tile. Callers number tiles by length, longest first, so that a launch does not end with long programs."""
    num_sequences = tl.num_programs(0) // num_tiles
    rest = tl.minimum(num_sequences, (num_tiles + SORTED - 1) // num_tiles)
    first = num_sequences - rest
    tile, sequence = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
    inside = tl.program_id(0) - first * num_tiles
    if inside >= 0:
        tile, sequence = inside // rest, first + inside % rest
    return tile, sequence


@triton.jit
def tile_of_head(num_tiles, num_heads):
    """Tile, row of the batch and head of a program, from the last head to the first. The kernels before and after it go
    through the heads in the other order, so that each begins with the scores that are still in the cache."""
    tile, sequence = tile_of_program(num_tiles)
    batch = tl.num_programs(0) // num_tiles // num_heads
    return tile, sequence % batch, num_heads - 1 - sequence // batch


@triton.jit
def mixed_bits(x):
    """A bijection of 32 bits in which every bit depends on every other: `lowbias32` of Chris Wellons."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def kept(seed, head, rows, keys, num_rows, rate):
    """Dropout's factors of a tile: 0, or 1 / (1 - rate).

    Each row has its own random start, from which keys are counted in large steps. A generator of higher quality would
    take longer than all the rest of attention.
    """
    begin = mixed_bits((head * num_rows + rows).to(tl.uint32) ^ mixed_bits(seed.to(tl.uint32)))
    drawn = mixed_bits(begin + keys.to(tl.uint32) * 0x9E3779B9)
    return tl.where(drawn >= tl.cast(rate * 4294967296.0, tl.uint32), 1.0 / (1.0 - rate), 0.0)


@triton.jit
def prepare_kernel(
    Q, U, W, QU, QW, stride_b, stride_h, stride_l, batch, num_heads, num_rows, residue_rows, group_rows,
    HAS_U: tl.constexpr, HAS_W: tl.constexpr, HAS_X: tl.constexpr, PAD: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """QU = q + u in q's order of rows; QW = q + w in the order of residues, with zeros in unused rows."""
    head = tl.program_id(1)
    b, h = head // num_heads, head % num_heads
    rows, dims = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    inside = (rows < num_rows)[:, None]
    place = Q + b.to(tl.int64) * stride_b + h * stride_h + rows[:, None] * stride_l + dims
    q = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if HAS_U:
        content = (q + tl.load(U + h * D + dims).to(tl.float32)).to(QU.dtype.element_ty)
        tl.store(QU + (head.to(tl.int64) * num_rows + rows[:, None]) * D + dims, content, mask=inside)
    if HAS_X:
        if HAS_W:
            q = tl.where(inside, q + tl.load(W + h * D + dims).to(tl.float32), 0.0)
        place = (h * 8 + rows % 8).to(tl.int64) * group_rows + rows // 8 * batch + b
        position = q.to(QW.dtype.element_ty)
        tl.store(QW + place[:, None] * D + dims, position, mask=(rows < residue_rows * 8)[:, None])
        if PAD:  # each row of the batch fills up one residue, the first ones the others too
            unused = batch * residue_rows + tl.arange(0, BM)
            for residue in range(tl.where(tl.program_id(0) == 0, b, 8), 8, batch):
                filled = (h * 8 + residue).to(tl.int64) * group_rows + unused[:, None]
                tl.store(QW + filled * D + dims, tl.zeros((BM, D), QW.dtype.element_ty), (unused < group_rows)[:, None])


@triton.jit
def first_tile(last_m, batch, first, BN: tl.constexpr):
    """The first tile of columns that rows up to `last_m` of a residue can see: before it all keys are negative."""
    return tl.maximum(0, first - last_m // batch * 8) // BN * BN


@triton.jit
def column_end(m, residue, LIMIT, batch, num_rows, num_keys, offset, ahead, first, pitch):
    """The end of the columns that rows `m` of a residue see, if no query sees more keys than the limit."""
    i = m // batch * 8 + residue
    last = tl.minimum(tl.minimum(num_keys, tl.load(LIMIT)) - 1, i + offset + ahead)
    return tl.minimum(pitch, tl.max(tl.where(i < num_rows, last + first - m // batch * 8, -1)) + 1)


@triton.jit
def position_kernel(
    QW, R, BIAS, X, FLAG, BEGIN, batch, num_rows, num_keys, num_columns, group_rows, pitch, first, pad, first_column,
    offset, ahead, window, scale, LIMIT,
    LIMITED: tl.constexpr, AGAIN: tl.constexpr, HAS_BIAS: tl.constexpr, BEGINS: tl.constexpr, WINDOW: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """X of some rows of one residue, long rows first, and zeros where no pair attends, as the backward pass needs.

    UNIT: columns that kernels of the backward pass read at once. AGAIN: only if the buffer has been overwritten.
    """
    num_tiles = group_rows // BM
    tile, group = tile_of_program(num_tiles)
    m0 = (num_tiles - 1 - tile) * BM
    h, residue = group // 8, group % 8
    if AGAIN:
        if tl.load(FLAG) != 0:
            return
    elif (group == 0) & (m0 == 0):
        tl.store(FLAG, 1)
    qw = QW.load([group * group_rows + m0, 0])
    shift = residue + pad - first_column
    m = m0 + tl.arange(0, BM)
    i = m // batch * 8 + residue
    lowest = first - m // batch * 8
    seen_keys = num_keys
    if LIMITED:
        seen_keys = tl.minimum(num_keys, tl.load(LIMIT))
    highest = tl.where(i < num_rows, tl.minimum(seen_keys - 1, i + offset + ahead) + lowest, -1)
    if BEGINS:
        lowest += tl.load(BEGIN + m % batch)
    if WINDOW:
        lowest = tl.maximum(lowest, i + offset - window + 1 + first - m // batch * 8)
    end = pitch
    if LIMITED:
        end = column_end(m, residue, LIMIT, batch, num_rows, num_keys, offset, ahead, first, pitch)
        end = tl.minimum(pitch, (end + UNIT - 1) // UNIT * UNIT)
    clear, mixed = tl.max(lowest), tl.min(highest)
    for p0 in tl.range(first_tile(m0 + BM - 1, batch, first, UNIT), end, BN, num_stages=STAGES):
        r = R.load([h, p0 - shift, 0]).reshape([BN, D])
        x = tl.dot(qw, r.T, input_precision=PRECISION)
        p = p0 + tl.arange(0, BN)
        if HAS_BIAS:
            columns = p - shift
            inside = (columns >= 0) & (columns < num_columns)
            x += tl.load(BIAS + h * num_columns + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
        x = tl.minimum(tl.maximum(x * scale, -LARGEST), LARGEST)
        if (p0 < clear) | (p0 + BN > mixed + 1):  # other tiles need no mask
            x = tl.where((p[None, :] >= lowest[:, None]) & (p[None, :] <= highest[:, None]), x, 0.0)
        X.store([group * group_rows + m0, p0], x.to(X.dtype))


@triton.jit
def load_gates(GATE, b, h, rows, num_heads, num_rows):
    """Logarithms of g / (1 - g) of the gates of some rows of a head, from (B, L, H), fp32. Gates are at least 1e-26, so
    that their inverses are finite."""
    place = GATE + (b.to(tl.int64) * num_rows + rows) * num_heads + h
    return tl.maximum(tl.load(place, mask=rows < num_rows, other=0.0).to(tl.float32), -60.0)


@triton.jit
def forward_kernel(
    Q, U, K, V, X, O, LSE, GATE, BEGIN, LOW, HIGH, SEED, num_heads, num_rows, num_keys, offset, window, scale, rate,
    HAS_U: tl.constexpr, HAS_GATE: tl.constexpr, BEGINS: tl.constexpr, SPANS: tl.constexpr, WINDOW: tl.constexpr,
    DROPOUT: tl.constexpr, HAS_X: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Online softmax, times gates if there are any; tiles of queries from the last to the first: long rows first."""
    num_tiles = (num_rows + BM - 1) // BM
    tile, b, h = tile_of_head(num_tiles, num_heads)
    i0, head = (num_tiles - 1 - tile) * BM, b * num_heads + h
    rows = i0 + tl.arange(0, BM)
    q = Q.load([b, h, i0, 0]).reshape([BM, D])
    if HAS_U:
        q = (q.to(tl.float32) + tl.load(U + h * D + tl.arange(0, D)).to(tl.float32)).to(q.dtype)
    low, high = 0, 0
    if BEGINS:
        low = tl.load(BEGIN + b)
    if SPANS:
        inside = rows < num_rows
        low = tl.load(LOW + b * num_rows + rows, mask=inside, other=num_keys)
        high = tl.load(HIGH + b * num_rows + rows, mask=inside, other=0)
    seed = 0
    if DROPOUT:
        seed = tl.load(SEED)
    begin, clear, mixed, end = key_range(i0, low, high, num_keys, offset, window, SPANS, WINDOW, BM, BN)
    if SPANS:
        clear = tl.max(tl.where(inside, low, 0))
        mixed = tl.min(tl.where(inside, high, num_keys)) - BN + 1
    acc = tl.zeros([BM, D], tl.float32)
    total = tl.zeros([BM], tl.float32)
    largest = tl.full([BM], float("-inf"), tl.float32)
    for j0 in tl.range(begin, end, BN, num_stages=STAGES):
        keys = j0 + tl.arange(0, BN)[None, :]
        k = K.load([b, h, j0, 0]).reshape([BN, D])
        s = tl.dot(q, k.T, input_precision=PRECISION) * scale
        if HAS_X:
            s += X.load([h, b, i0 // 8, 0, j0]).reshape([BM, BN])
        if (j0 < clear) | (j0 >= mixed):
            seen = visible(rows[:, None], keys, low, high, num_keys, offset, window, SPANS, WINDOW)
            s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(largest, tl.max(s, 1))
        reference = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(s - reference[:, None])
        shrink = tl.exp2(largest - reference)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        if DROPOUT:
            p = p * kept(seed, head, rows[:, None], keys, num_rows, rate)
        v = V.load([b, h, j0, 0]).reshape([BN, D])
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        largest = new
    total = tl.where(total == 0.0, 1.0, total)  # of queries that see no key: zeros, and a log-sum-exp of -inf
    divisor = total
    if HAS_GATE:
        divisor = total * (1.0 + tl.exp(-load_gates(GATE, b, h, rows, num_heads, num_rows)))
    O.store([b, h, i0, 0], (acc / divisor[:, None]).to(O.dtype).reshape([1, 1, BM, D]))
    tl.store(LSE + head * num_rows + rows, (largest + tl.log2(total)) * LN2, mask=rows < num_rows)
