"""The attention kernel in Triton. Set ENABLED to True to be measured with it instead of
`attention.cu`.
"""

import torch
import triton
import triton.language as tl

ENABLED = False

QUERIES = 128
KEYS = 64


@triton.jit
def step(
    q_block,
    k,
    v,
    first,
    acc,
    top,
    total,
    rows,
    columns,
    seq,
    scale,
    masked: tl.constexpr,
    causal: tl.constexpr,
    dim: tl.constexpr,
    tile_keys: tl.constexpr,
):
    """One tile of keys: scores in units of log2, the online softmax, and its weights times the
    values. Only with masked is any score tested.
    """
    keys = first + tl.arange(0, tile_keys)
    # K is loaded transposed, so that the product needs no further step.
    k_block = (
        tl.load(k + keys[None, :] * dim + columns[:, None], mask=keys[None, :] < seq, other=0.0)
        if masked
        else tl.load(k + keys[None, :] * dim + columns[:, None])
    )
    scores = tl.dot(q_block, k_block) * scale
    if masked:
        visible = keys[None, :] < seq
        if causal:
            visible = visible & (keys[None, :] <= rows[:, None])
        scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    decay = tl.exp2(top - new_top)
    total = total * decay + tl.sum(weights, 1)
    v_block = (
        tl.load(v + keys[:, None] * dim + columns[None, :], mask=keys[:, None] < seq, other=0.0)
        if masked
        else tl.load(v + keys[:, None] * dim + columns[None, :])
    )
    acc = tl.dot(weights.to(v_block.dtype), v_block, acc * decay[:, None])
    return acc, new_top, total


@triton.jit
def attention_kernel(
    q,
    k,
    v,
    out,
    seq,
    scale,
    causal: tl.constexpr,
    dim: tl.constexpr,
    tile_queries: tl.constexpr,
    tile_keys: tl.constexpr,
):
    """One block of queries of one head. Arrays are heads x seq x dim, contiguous. `scale` includes
    log2(e).
    """
    head = tl.program_id(1).to(tl.int64) * seq * dim
    # Under the mask the last queries have most keys: they start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    rows = block * tile_queries + tl.arange(0, tile_queries)
    columns = tl.arange(0, dim)
    q_block = tl.load(
        q + head + rows[:, None] * dim + columns[None, :], mask=rows[:, None] < seq, other=0.0
    )

    top = tl.full([tile_queries], -1e30, tl.float32)
    total = tl.zeros([tile_queries], tl.float32)
    acc = tl.zeros([tile_queries, dim], tl.float32)
    # Keys before it are visible to every row.
    plain = (tl.minimum(block * tile_queries, seq) if causal else seq) // tile_keys * tile_keys
    last = tl.minimum((block + 1) * tile_queries, seq) if causal else seq
    for first in range(0, plain, tile_keys):
        acc, top, total = step(
            q_block,
            k + head,
            v + head,
            first,
            acc,
            top,
            total,
            rows,
            columns,
            seq,
            scale,
            False,
            causal,
            dim,
            tile_keys,
        )
    for first in range(plain, last, tile_keys):
        acc, top, total = step(
            q_block,
            k + head,
            v + head,
            first,
            acc,
            top,
            total,
            rows,
            columns,
            seq,
            scale,
            True,
            causal,
            dim,
            tile_keys,
        )

    # A query that sees no key answers 0
    result = tl.where(total > 0, 1.0 / total, 0.0)[:, None] * acc
    tl.store(
        out + head + rows[:, None] * dim + columns[None, :],
        result.to(out.dtype.element_ty),
        mask=rows[:, None] < seq,
    )


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, causal: int
) -> None:
    """Fills `out`. All are heads x seq x dim, float16 or bfloat16, on the GPU."""
    heads, seq, dim = q.shape
    grid = (triton.cdiv(seq, QUERIES), heads)
    scale = 1.4426950408889634 * dim**-0.5
    attention_kernel[grid](
        q,
        k,
        v,
        out,
        seq,
        scale,
        causal=bool(causal),
        dim=dim,
        tile_queries=QUERIES,
        tile_keys=KEYS,
        num_warps=4 if dim == 64 else 8,
        num_stages=3,
    )
