"""The kernel's reference: PyTorch's scaled_dot_product_attention, its fused backend
pinned.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# Without a pin, PyTorch chooses by shape, and the comparison would mean something else from case to
# case
BACKEND = SDPBackend.FLASH_ATTENTION


def load(device: str):
    """The same function as `attention.load` returns, by PyTorch."""
    return _cuda if device == "cuda" else _cpu


@torch.inference_mode()
def _cpu(q, k, v, causal, threads=1):
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    with sdpa_kernel(BACKEND):
        return F.scaled_dot_product_attention(
            *(torch.from_numpy(np.asarray(x)) for x in (q, k, v)), is_causal=bool(causal)
        ).numpy()


def _on_gpu(array, dtype):
    """The bits of bfloat16 as they are, other numbers in that precision."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).cuda().view(dtype)
    return torch.from_numpy(array).cuda().to(dtype)


@torch.inference_mode()
def _cuda(q, k, v, causal, weights, bf16=0, backend=""):
    """With the name of another backend: by that one, or nothing where it is not available."""
    pinned = getattr(SDPBackend, backend) if backend else BACKEND
    dtype = torch.bfloat16 if bf16 else torch.float16
    shape = q.shape
    q, k, v = (_on_gpu(array, dtype).flatten(0, 1) for array in (q, k, v))
    total = torch.zeros(shape, device=q.device, dtype=torch.float32)
    try:
        with sdpa_kernel(pinned):
            for shift, weight in enumerate(np.asarray(weights).tolist()):
                q = q.roll(1, 2) if shift and shift % len(q) == 0 else q
                rolled = (x.view(shape) for x in (q.roll(shift, 0), k, v))
                total.add_(
                    F.scaled_dot_product_attention(*rolled, is_causal=bool(causal)), alpha=weight
                )
    except RuntimeError:  # "No available kernel"
        if not backend:
            raise
        return np.empty(0, np.float32)
    return total.flatten(0, 1).cpu().numpy()
