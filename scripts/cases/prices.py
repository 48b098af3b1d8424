"""Price what an operator of PyTorch costs a device: its kernels, by name and time.

Times follow the virtual GPU's figures (`measure/virtual_gpu/spec.py`): a fixed part, then the
longer of computing and moving. Rates by type are an H200's, as far as libraries reach them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from scripts.cases.machine import Kernel
from scripts.cases.multi_tensor import multi_tensor
from torch.utils.flop_counter import flop_registry

from bottleneck_lab.measure.virtual_gpu.spec import GpuSpec

aten = torch.ops.aten

FLOPS_PER_S = {torch.bfloat16: 500e12, torch.float16: 500e12, torch.float64: 30e12}
TF32_FLOPS_PER_S = 250e12
LAYOUT_RATE = 0.6
"""A layout conversion reaches this part of the memory's speed."""

_FREE = ("empty", "new_empty", "detach", "_unsafe_view", "_reshape_alias", "alias", "lift_fresh")
_NAMES = {
    "native_layer_norm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel",
    "native_layer_norm_backward": "void at::native::(anonymous namespace)::layer_norm_grad_input",
    "_softmax": "void (anonymous namespace)::softmax_warp_forward",
    "_log_softmax": "void (anonymous namespace)::cunn_SoftMaxForward",
    "_softmax_backward_data": "void (anonymous namespace)::softmax_warp_backward",
    "_log_softmax_backward_data": "void (anonymous namespace)::cunn_SoftMaxBackward",
    "embedding": "void at::native::(anonymous namespace)::indexSelectLargeIndex",
    "embedding_dense_backward": "void at::native::(anonymous namespace)::compute_grad_weight",
    "native_batch_norm": "void cudnn::bn_fw_tr_1C11_kernel_NCHW",
    "_native_batch_norm_legit": "void cudnn::bn_fw_tr_1C11_kernel_NCHW",
    "_native_batch_norm_legit_functional": "void cudnn::bn_fw_tr_1C11_kernel_NCHW",
    "cudnn_batch_norm": "void cudnn::bn_fw_tr_1C11_kernel_NCHW",
    "native_batch_norm_backward": "void cudnn::bn_bw_1C11_singleread",
    "cat": "void at::native::(anonymous namespace)::CatArrayBatchedCopy",
    "index_select": "void at::native::(anonymous namespace)::indexSelectLargeIndex",
    "sort": "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel",
    "topk": "void at::native::sbtopk::gatherTopK",
    "max_pool2d_with_indices": "void at::native::(anonymous namespace)::max_pool_forward_nhwc",
}
_REDUCTIONS = ("sum", "mean", "max", "min", "argmax", "norm", "linalg_vector_norm", "var", "all")


def is_free(function: Any) -> bool:
    """Return True if an operator costs the device nothing: it only looks at a tensor."""
    name = function.overloadpacket.__name__
    return bool(function.is_view) or name.startswith(_FREE)


def kernels_of(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, spec: GpuSpec
) -> list[Kernel]:
    """Return the kernels that an operator launches."""
    name = function.overloadpacket.__name__
    read = [each for each in leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    made = [each for each in leaves(result) if isinstance(each, torch.Tensor)]
    nbytes = sum(each.nbytes for each in (*read, *made))
    if name.startswith("_foreach"):
        return multi_tensor(function, args, result, spec)
    formula = flop_registry.get(getattr(aten, name.removesuffix("_"), None))
    flops = float(formula(*args, **kwargs, out_val=result)) if formula else 0.0
    if flops:
        return _product(name, read, made, flops, nbytes, spec)
    reduces = name.split(".")[0] in _REDUCTIONS
    us = spec.kernel_time_us(0.0, nbytes, reduces=reduces or name in _NAMES)
    if name == "native_batch_norm" and not args[5]:  # an .eval() model's: it has no statistics
        return [Kernel("void at::native::batch_norm_transform_input_kernel<float, float>", us)]
    return [Kernel(_kernel_name(name, reduces=reduces), us)]


def leaves(value: Any) -> list[Any]:
    """Return what nested lists, tuples and dictionaries hold."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def _kernel_name(name: str, *, reduces: bool) -> str:
    if name in _NAMES:
        return f"{_NAMES[name]}<float, float>"
    if reduces:
        return f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, {name}>>"
    functor = "direct_copy" if "copy" in name or name == "clone" else name.strip("_")
    return f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}_functor>"


class _Precision(NamedTuple):
    """How a product is computed: the part of a kernel's name that says so, and the rate."""

    name: str
    flops_per_s: float


def _precision(dtype: torch.dtype, spec: GpuSpec, *, convolves: bool) -> _Precision:
    """Return how a product of this type is computed; without a name, on no tensor core."""
    if dtype in (torch.bfloat16, torch.float16):
        return _Precision("bf16bf16_bf16f32_f32", FLOPS_PER_S[dtype])
    if dtype == torch.float64:
        return _Precision("", FLOPS_PER_S[dtype])
    # As PyTorch ships: TF32 for convolutions, not for products, unless the program says so.
    if convolves:
        tf32 = torch.backends.cudnn.allow_tf32
    else:
        tf32 = torch.get_float32_matmul_precision() != "highest"
    if tf32:
        return _Precision("tf32tf32_tf32f32_f32", TF32_FLOPS_PER_S)
    return _Precision("", spec.flops_per_s)


def _product(
    name: str,
    read: list[torch.Tensor],
    made: list[torch.Tensor],
    flops: float,
    nbytes: float,
    spec: GpuSpec,
) -> list[Kernel]:
    """Return the kernels of a matrix product, an attention or a convolution."""
    dtype = next(each.dtype for each in read if each.is_floating_point())
    precision = _precision(dtype, spec, convolves="conv" in name)
    seconds = max(flops / precision.flops_per_s, nbytes / spec.bytes_per_s)
    us = spec.reduction_us + seconds * 1e6
    if "attention" in name:
        return [Kernel(attention_kernel("bwd" if "backward" in name else "fwd", dtype), us)]
    if "conv" in name:
        return _convolution(name, read, made, us, precision, spec)
    if precision.name:
        return [Kernel(f"sm90_xmma_gemm_{precision.name}_tn_n_tilesize128x128x64_cublas", us)]
    if dtype == torch.float64:
        return [Kernel("cutlass_80_tensorop_d884gemm_64x64_16x4_tn_align1", us)]
    return [Kernel("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_128x64x8_ffma_cublas", us)]


def attention_kernel(way: str, dtype: torch.dtype) -> str:
    """Return the name of the kernel that fused attention of this type launches, `fwd` or `bwd`."""
    if dtype == torch.float32:
        return f"fmha_cutlass{way[0].upper()}_f32_aligned_64x64_rf_sm80"
    return f"void pytorch_flash::flash_{way}_kernel<Flash_{way}_kernel_traits<64, 128, 128, 4>>"


def _convolution(
    name: str,
    read: list[torch.Tensor],
    made: list[torch.Tensor],
    us: float,
    precision: _Precision,
    spec: GpuSpec,
) -> list[Kernel]:
    """Return the kernel of a convolution, with the layout conversions that half precision needs
    around it.
    """
    backward = "backward" in name
    way = "dgrad" if backward else "fprop"
    # The activations decide: `input` is the first argument of the forward, the second of the
    # backward.
    activations = read[1] if backward else read[0]
    if not precision.name:
        return [Kernel(f"implicit_convolve_scudnn_128x64_{way}", us)]
    half = activations.dtype in (torch.bfloat16, torch.float16)
    last = activations.is_contiguous(memory_format=torch.channels_last)
    layout = "nhwckrsc_nhwc" if last or half else "nchwkcrs_nchw"
    gemm = f"sm90_xmma_{way}_implicit_gemm_{precision.name}_{layout}_tilesize128x128x64"
    if not half or last:
        return [Kernel(gemm, us)]
    # cuDNN computes half precision with the channels last, and converts what comes otherwise.
    after = max((each.nbytes for each in made if each.dim() == 4), default=0)
    to_last_us, back_us = (
        spec.kernel_us + 2 * moved / (spec.bytes_per_s * LAYOUT_RATE) * 1e6
        for moved in (activations.nbytes, after)
    )
    return [
        Kernel("void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16>", to_last_us),
        Kernel(gemm, us),
        Kernel("void cudnn::ops::nhwcToNchwKernel<__nv_bfloat16>", back_us),
    ]
