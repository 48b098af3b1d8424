"""The attention kernel in Triton. Set ENABLED to True to be measured with it instead of
`attention.cu`.
"""

import torch
import triton
import triton.language as tl

ENABLED = False

QUERIES = 64
KEYS = 32


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
    """One block of queries of one head. Arrays are heads x seq x dim, contiguous."""
    head = tl.program_id(1) * seq * dim
    rows = tl.program_id(0) * tile_queries + tl.arange(0, tile_queries)
    columns = tl.arange(0, dim)
    q_block = tl.load(
        q + head + rows[:, None] * dim + columns[None, :], mask=rows[:, None] < seq, other=0.0
    )

    top = tl.full([tile_queries], -1e30, tl.float32)
    total = tl.zeros([tile_queries], tl.float32)
    acc = tl.zeros([tile_queries, dim], tl.float32)
    for first in range(0, seq, tile_keys):
        keys = first + tl.arange(0, tile_keys)
        k_block = tl.load(
            k + head + keys[:, None] * dim + columns[None, :], mask=keys[:, None] < seq, other=0.0
        )
        scores = tl.dot(q_block, tl.trans(k_block)) * scale
        visible = keys[None, :] < seq
        if causal:
            visible = visible & (keys[None, :] <= rows[:, None])
        scores = tl.where(visible, scores, -1e30)
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.where(visible, tl.exp(scores - new_top[:, None]), 0.0)
        decay = tl.exp(top - new_top)
        total = total * decay + tl.sum(weights, 1)
        top = new_top
        v_block = tl.load(
            v + head + keys[:, None] * dim + columns[None, :], mask=keys[:, None] < seq, other=0.0
        )
        acc = acc * decay[:, None] + tl.dot(weights.to(v_block.dtype), v_block)

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
    attention_kernel[grid](
        q,
        k,
        v,
        out,
        seq,
        dim**-0.5,
        causal=bool(causal),
        dim=dim,
        tile_queries=QUERIES,
        tile_keys=KEYS,
        num_warps=4,
        num_stages=1,
    )
