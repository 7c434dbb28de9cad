"""Triton kernels of the backward pass. The gradient dS of the scores takes the place of the position scores X.

    key_value_kernel    dK, dV; X -> dS                         over keys, tiles of queries inside
    product_kernel      dr = dS^T (q + w), residue by residue   over distances, rows sorted by residue inside
                        dq = dS r, dw                           over rows sorted by residue, distances inside
                        dq = dS k, du                           over queries, tiles of keys inside
    sum_kernel          dq, dr, du, dw                          the parts of the kernel above
    query_kernel        dq = dS k, du                           in place of both without positions

The buffer holds zeros for pairs that do not attend (see `position_kernel`), so loads by distance need no mask.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false, reportCallIssue=false
# Triton kernels are not Python to a type checker.

from __future__ import annotations

import triton
import triton.language as tl

from mnemo.ops.cuda.forward_kernels import (
    LOG2E,
    column_end,
    first_tile,
    kept,
    key_range,
    load_gates,
    tile_of_head,
    tile_of_program,
    visible,
)


@triton.jit
def delta_kernel(
    O, DO, LSE, DLSE, GATE, SHIFT, DELTA, DGATE, stride_ob, stride_oh, stride_ol, stride_db, stride_dh, stride_dl,
    num_heads, num_rows, padded_rows,
    HAS_DLSE: tl.constexpr, HAS_GATE: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """DELTA, the mean of the probabilities' gradients, weighted by them, minus the gradient of the log-sum-exp; SHIFT,
    the log-sum-exp for powers of 2. Rows after the last have no probabilities: infinity and zero.

    With gates g, O and its gradient DO are those of the product g o, and the gradient of o is g DO. The kernels that
    follow read DO: for them, SHIFT makes all probabilities p the product g p, and DELTA is divided by g. DGATE, the
    gradient of g's logit, is g (1 - g) times the sum of o DO, which is that of O DO divided by g.
    """
    head = tl.program_id(1)
    b, h = (head // num_heads).to(tl.int64), head % num_heads
    rows, dims = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)[None, :]
    inside, at = rows < num_rows, rows[:, None]
    o = tl.load(O + b * stride_ob + h * stride_oh + at * stride_ol + dims, mask=inside[:, None], other=0.0)
    do = tl.load(DO + b * stride_db + h * stride_dh + at * stride_dl + dims, mask=inside[:, None], other=0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    lse = tl.load(LSE + head * num_rows + rows, mask=inside, other=float("inf"))
    if HAS_GATE:
        inverse = 1.0 + tl.exp(-load_gates(GATE, b, h, rows, num_heads, num_rows))
        d_gate = delta * (1.0 - 1.0 / inverse)
        place = DGATE + (b * num_rows + rows) * num_heads + h
        tl.store(place, d_gate.to(DGATE.dtype.element_ty), mask=inside)
    if HAS_DLSE:
        delta -= tl.load(DLSE + head * num_rows + rows, mask=inside, other=0.0)
    shift = lse * LOG2E
    if HAS_GATE:
        delta, shift = delta * inverse, shift + tl.log2(inverse)
    tl.store(SHIFT + head * padded_rows + rows, shift)
    tl.store(DELTA + head * padded_rows + rows, delta)


@triton.jit
def add_parts(PARTS, TOTAL, h, num_parts, stride_h, stride_n, D: tl.constexpr, BM: tl.constexpr):
    """The sum of the parts of a head, in the type of the result."""
    dims = tl.arange(0, D)
    total = tl.zeros((BM, D), tl.float32)
    for begin in range(0, num_parts, BM):
        parts = (begin + tl.arange(0, BM))[:, None]
        total += tl.load(PARTS + h * stride_h + parts * stride_n + dims, mask=parts < num_parts, other=0.0)
    tl.store(TOTAL + h * D + dims, tl.sum(total, 0).to(TOTAL.dtype.element_ty))


@triton.jit
def add_residues(DR_PARTS, DR, h, tile, num_columns, unused, pad, pitch, D: tl.constexpr, BM: tl.constexpr):
    """A tile of dr: the sum of eight residues."""
    columns, dims = tile * BM + tl.arange(0, BM)[:, None], tl.arange(0, D)[None, :]
    inside = (columns >= unused) & (columns < num_columns)
    total = tl.zeros((BM, D), tl.float32)
    for residue in tl.static_range(8):  # each residue begins a column later
        place = (h * 8 + residue).to(tl.int64) * pitch + columns - unused + pad + residue
        total += tl.load(DR_PARTS + place * D + dims, mask=inside, other=0.0).to(tl.float32)
    tl.store(DR + (h * num_columns + columns) * D + dims, total.to(DR.dtype.element_ty), columns < num_columns)


@triton.jit
def add_block(PART, TOTAL, number, num_elements, BLOCK: tl.constexpr):
    """Elements of PART, added to those of TOTAL."""
    place = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num_elements
    total = tl.load(TOTAL + place, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(PART + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(TOTAL + place, total.to(TOTAL.dtype.element_ty), mask=inside)


@triton.jit
def sum_kernel(
    DU_PARTS, DU, DW_PARTS, DW, DR_PARTS, DR, DQ_POSITION, DQ, num_u, stride_uh, stride_un, num_w, stride_wh, stride_wn,
    num_columns, unused, pad, pitch, num_elements,
    HAS_U: tl.constexpr, HAS_W: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program 0 of a head adds up du, program 1 dw, the next ones BM columns of dr each, and all others BLOCK elements
    of dq."""
    tile, h = tl.program_id(0), tl.program_id(1)
    column_tiles = (num_columns + BM - 1) // BM
    if tile == 0:
        if HAS_U:
            add_parts(DU_PARTS, DU, h, num_u, stride_uh, stride_un, D, BM)
    elif tile == 1:
        if HAS_W:
            add_parts(DW_PARTS, DW, h, num_w, stride_wh, stride_wn, D, BM)
    elif tile < 2 + column_tiles:
        add_residues(DR_PARTS, DR, h, tile - 2, num_columns, unused, pad, pitch, D, BM)
    else:
        number = (tile - 2 - column_tiles) * tl.num_programs(1) + h
        add_block(DQ_POSITION, DQ, number, num_elements, BLOCK)


@triton.jit
def query_range(first_key, low, num_rows, num_keys, offset, ahead, window, SPANS: tl.constexpr,
                WINDOW: tl.constexpr, UNIT: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Tiles of queries that see a tile of keys, [begin, end) in whole units; those from `clear` on need no mask."""
    before = first_key - offset
    if SPANS:
        before -= ahead
    begin, clear, end = tl.maximum(0, before) // UNIT * UNIT, num_rows, num_rows
    if not SPANS:
        clear = first_key + BN - 1 - offset
        if WINDOW:
            end = tl.minimum(end, (first_key + BN - 1 + window - offset + UNIT - 1) // UNIT * UNIT)
            clear = end
        if first_key + BN <= low:
            end = begin
        if (first_key < low) | (first_key + BN > num_keys):
            clear = end
    return begin, clear, end


@triton.jit
def key_value_kernel(
    Q, K, V, DO, X, DS, FLAG, DK, DV, SHIFT, DELTA, BEGIN, LOW, HIGH, LIMIT, SEED, padded_rows, ahead, num_heads,
    num_rows, num_keys, offset, window, scale, root, rate,
    BEGINS: tl.constexpr, SPANS: tl.constexpr, WINDOW: tl.constexpr, LIMITED: tl.constexpr,
    DROPOUT: tl.constexpr, HAS_X: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Scores are transposed here, (BN, BM), so that both products with queries read them from registers.

    UNIT: a number of queries that `content_query` reads at once. Zeros are written for all of them if one sees a key of
    the tile, so that it needs no mask.
    """
    tile, b, h = tile_of_head((num_keys + BN - 1) // BN, num_heads)
    j0, head = tile * BN, b * num_heads + h
    keys = j0 + tl.arange(0, BN)[:, None]
    k = K.load([b, h, j0, 0]).reshape([BN, D])
    v = V.load([b, h, j0, 0]).reshape([BN, D])
    low, seed = 0, 0
    if BEGINS:
        low = tl.load(BEGIN + b)
    if DROPOUT:
        seed = tl.load(SEED)
    begin, clear, end = query_range(j0, low, num_rows, num_keys, offset, ahead, window, SPANS, WINDOW, UNIT, BN)
    if LIMITED:
        end = tl.where(j0 >= tl.load(LIMIT), begin, end)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    for i0 in tl.range(begin, end, BM, num_stages=STAGES):
        rows = i0 + tl.arange(0, BM)
        q = Q.load([b, h, i0, 0]).reshape([BM, D])
        do = DO.load([b, h, i0, 0]).reshape([BM, D])
        shift = tl.load(SHIFT + head * padded_rows + rows)
        delta = tl.load(DELTA + head * padded_rows + rows)
        s = tl.dot(k, q.T, input_precision=PRECISION)
        if HAS_X:
            x = X.load([h, b, i0 // 8, 0, j0]).reshape([BM, BN]).T
            p = tl.exp2(s * scale + (x - shift[None, :]))
        else:
            p = tl.exp2(s * scale - shift[None, :])
        if SPANS:
            first = tl.load(LOW + b * num_rows + rows, mask=rows < num_rows, other=num_keys)[None, :]
            last = tl.load(HIGH + b * num_rows + rows, mask=rows < num_rows, other=0)[None, :]
            p = tl.where((keys >= first) & (keys < last), p, 0.0)
        elif i0 < clear:
            seen = visible(rows[None, :], keys, low, 0, num_keys, offset, window, False, WINDOW)
            p = tl.where(seen & (rows < num_rows)[None, :], p, 0.0)
        dp = tl.dot(v, do.T, input_precision=PRECISION)
        if DROPOUT:
            factor = kept(seed, head, rows[None, :], keys, num_rows, rate)
            dp = dp * factor
            dv = tl.dot((p * factor).to(do.dtype), do, dv, input_precision=PRECISION)
        else:
            dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        ds = (p * (dp - delta[None, :])).to(q.dtype)
        DS.store([h, b, i0 // 8, 0, j0], ds.T.reshape([1, 1, BM // 8, 8, BN]))
        dk = tl.dot(ds, q, dk, input_precision=PRECISION)
    if (j0 == 0) & (head == 0):
        tl.store(FLAG, 0)
    DK.store([b, h, j0, 0], (dk * root).to(DK.dtype).reshape([1, 1, BN, D]))
    DV.store([b, h, j0, 0], dv.to(DV.dtype).reshape([1, 1, BN, D]))


@triton.jit
def position_query(
    DX, R, DQ, DW, tile, num_tiles, group, stride_b, stride_h, stride_l, batch, num_rows, group_rows, pitch, first, pad,
    first_column, root, num_keys, offset, ahead, LIMIT,
    LIMITED: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """dS r of some rows of one residue, and their sum."""
    h, residue = group // 8, group % 8
    m0 = tile * BM
    shift = residue + pad - first_column
    acc = tl.zeros([BM, D], tl.float32)
    end = pitch
    if LIMITED:
        rows = m0 + tl.arange(0, BM)
        end = column_end(rows, residue, LIMIT, batch, num_rows, num_keys, offset, ahead, first, pitch)
    for p0 in tl.range(first_tile(m0 + BM - 1, batch, first, BN), end, BN, num_stages=STAGES):
        dx = DX.load([group * group_rows + m0, p0])
        r = R.load([h, p0 - shift, 0]).reshape([BN, D])
        acc = tl.dot(dx, r, acc, input_precision=PRECISION)
    acc = acc * root
    m, dims = m0 + tl.arange(0, BM), tl.arange(0, D)
    b, i = (m % batch).to(tl.int64), m // batch * 8 + residue
    inside = (i < num_rows)[:, None]
    tl.store(
        DQ + (b * stride_b + h * stride_h + i * stride_l)[:, None] + dims, acc.to(DQ.dtype.element_ty), mask=inside
    )
    tl.store(DW + (group * num_tiles + tile) * D + dims, tl.sum(tl.where(inside, acc, 0.0), 0))


@triton.jit
def relation(
    DX, QW, DR, tile, group, batch, group_rows, pitch, first, root, num_rows, num_keys, offset, ahead, LIMIT,
    LIMITED: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """dS^T (q + w) of one residue, by column."""
    p0 = tile * BN
    begin = tl.maximum(0, (first - p0 - BN + 1 + 7) // 8) * batch // BM * BM
    end = group_rows
    if LIMITED:
        residue = group % 8
        behind = tl.minimum(num_keys, tl.load(LIMIT)) - 1 + first - p0  # rows up to this query see the first column
        last = tl.minimum(behind, num_rows - 1 - residue)
        end = tl.where((last < 0) | (p0 > residue + offset + ahead + first), 0, (last // 8 + 1) * batch)
    acc = tl.zeros([BN, D], tl.float32)
    for m0 in tl.range(begin, end, BM, num_stages=STAGES):
        dx = DX.load([group * group_rows + m0, p0])
        qw = QW.load([group * group_rows + m0, 0])
        acc = tl.dot(dx.T, qw, acc, input_precision=PRECISION)
    columns, dims = p0 + tl.arange(0, BN), tl.arange(0, D)
    place = (group.to(tl.int64) * pitch + columns)[:, None] * D + dims
    tl.store(DR + place, (acc * root).to(DR.dtype.element_ty), mask=(columns < pitch)[:, None])


@triton.jit
def content_query(
    DS, K, DQ, DU, BEGIN, LOW, HIGH, tile, b, h, stride_b, stride_h, stride_l, batch, num_heads, num_rows, num_keys,
    offset, window, root,
    BEGINS: tl.constexpr, SPANS: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dS k of a tile of queries, and their sum."""
    i0 = tile * BM
    rows, dims = i0 + tl.arange(0, BM), tl.arange(0, D)
    inside = rows < num_rows
    low, high = 0, 0
    if BEGINS:
        low = tl.load(BEGIN + b)
    if SPANS:
        low = tl.load(LOW + b * num_rows + rows, mask=inside, other=num_keys)
        high = tl.load(HIGH + b * num_rows + rows, mask=inside, other=0)
    begin, _, _, end = key_range(i0, low, high, num_keys, offset, window, SPANS, WINDOW, BM, BN)
    acc = tl.zeros([BM, D], tl.float32)
    for j0 in tl.range(begin, end, BN, num_stages=STAGES):
        ds = DS.load([h, b, i0 // 8, 0, j0]).reshape([BM, BN])
        k = K.load([b, h, j0, 0]).reshape([BN, D])
        acc = tl.dot(ds, k, acc, input_precision=PRECISION)
    acc = tl.where(inside[:, None], acc * root, 0.0)
    tl.store(DU + ((tile * batch + b) * num_heads + h) * D + dims, tl.sum(acc, 0))
    place = DQ + (b.to(tl.int64) * stride_b + h * stride_h + rows * stride_l)[:, None] + dims
    tl.store(place, acc.to(DQ.dtype.element_ty), mask=inside[:, None])


@triton.jit
def query_kernel(
    DS, K, DQ, DU, BEGIN, LOW, HIGH, stride_b, stride_h, stride_l, batch, num_heads, num_rows, num_keys, offset, window,
    root,
    BEGINS: tl.constexpr, SPANS: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Without positions, the only product with dS; long rows first."""
    num_tiles = (num_rows + BM - 1) // BM
    number, sequence = tile_of_program(num_tiles)
    content_query(
        DS, K, DQ, DU, BEGIN, LOW, HIGH, num_tiles - 1 - number, sequence % batch, sequence // batch, stride_b,
        stride_h, stride_l, batch, num_heads, num_rows, num_keys, offset, window, root, BEGINS, SPANS, WINDOW, D, BM,
        BN, PRECISION, STAGES,
    )  # fmt: skip


@triton.jit
def product_kernel(
    QDX, R, DQ_POSITION, DW, RDX, QW, DR, DS, K, DQ, DU, BEGIN, LOW, HIGH, LIMIT, stride_b, stride_h, stride_l, batch,
    group_rows, pitch, first, pad, first_column, ahead, root, num_heads, num_rows, num_keys, offset, window,
    LIMITED: tl.constexpr, BEGINS: tl.constexpr, SPANS: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr,
    PBM: tl.constexpr, PBN: tl.constexpr, RBM: tl.constexpr, RBN: tl.constexpr, QBM: tl.constexpr, QBN: tl.constexpr,
    PRECISION: tl.constexpr, PSTAGES: tl.constexpr, RSTAGES: tl.constexpr, QSTAGES: tl.constexpr,
):  # fmt: skip
    """All products with dS, head by head: the first of them to read a head's scores loads them into the cache, where
    the others find them. Of a head first those by distance, residue by residue, then those by key; long ones first."""
    number, h = tl.program_id(0), tl.program_id(1)
    num_columns, num_tiles = (pitch + RBN - 1) // RBN, group_rows // PBM
    residue, tile = number // (num_columns + num_tiles), number % (num_columns + num_tiles)
    group = h * 8 + residue
    if residue >= 8:
        number -= 8 * (num_columns + num_tiles)
        content_query(
            DS, K, DQ, DU, BEGIN, LOW, HIGH, (num_rows + QBM - 1) // QBM - 1 - number // batch, number % batch, h,
            stride_b, stride_h, stride_l, batch, num_heads, num_rows, num_keys, offset, window, root, BEGINS, SPANS,
            WINDOW, D, QBM, QBN, PRECISION, QSTAGES,
        )  # fmt: skip
    elif tile < num_columns:
        relation(
            RDX, QW, DR, num_columns - 1 - tile, group, batch, group_rows, pitch, first, root, num_rows, num_keys,
            offset, ahead, LIMIT, LIMITED, D, RBM, RBN, PRECISION, RSTAGES,
        )  # fmt: skip
    else:
        position_query(
            QDX, R, DQ_POSITION, DW, num_columns + num_tiles - 1 - tile, num_tiles, group, stride_b, stride_h,
            stride_l, batch, num_rows, group_rows, pitch, first, pad, first_column, root, num_keys, offset, ahead,
            LIMIT, LIMITED, D, PBM, PBN, PRECISION, PSTAGES,
        )  # fmt: skip
