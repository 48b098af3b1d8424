"""`torch.autocast` on the virtual GPU, by the rules that PyTorch has for CUDA.

They are listed under "CUDA Ops that can autocast to float16" and the two lists after it, at
https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from bottleneck_lab.measure.faults import NotModelled
from bottleneck_lab.measure.virtual_gpu.codec import leaves, replace

LOWER_PRECISION = frozenset(
    (
        *("_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "convolution"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("mm", "mv", "bmm", "matmul", "linear", "einsum", "addmm", "addmv", "addr", "addbmm"),
        *("baddbmm", "chain_matmul", "linalg_multi_dot", "linalg_vecdot", "prelu"),
        *("rnn_tanh_cell", "rnn_relu_cell", "gru_cell", "lstm_cell"),
        *("scaled_dot_product_attention", "_scaled_dot_product_flash_attention"),
    )
)
"""Operators that run in float16 or bfloat16."""
FULL_PRECISION = frozenset(
    (
        *("acos", "asin", "cosh", "sinh", "tan", "erfinv", "exp", "expm1", "softplus"),
        *("log", "log10", "log1p", "log2", "logsumexp", "pow", "reciprocal", "rsqrt"),
        *("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "renorm"),
        *("norm", "frobenius_norm", "nuclear_norm"),
        *("dist", "pdist", "cdist", "cosine_similarity", "cosine_embedding_loss"),
        *("l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "kl_div", "nll_loss"),
        *("nll_loss2d", "poisson_nll_loss", "binary_cross_entropy_with_logits"),
        *("hinge_embedding_loss", "margin_ranking_loss", "multi_margin_loss"),
        *("multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
        *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
        *("upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa"),
        *("upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
    )
)
"""Operators that run in float32."""
FULL_PRECISION_RESULT = frozenset(
    (
        *("sum", "prod", "cumsum", "cumprod", "softmax", "log_softmax"),
        *("linalg_vector_norm", "linalg_matrix_norm"),
    )
)
"""Operators whose result is float32, unless they are called with another `dtype`."""
WIDEST = frozenset(
    (
        *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler"),
        *("index_put", "scatter_add", "tensordot"),
    )
)
"""Operators that run in the widest type among their tensors."""


class Autocast:
    """The rules for one type of device, registered with PyTorch. Weights that are cast stay so
    until the program leaves its outermost `torch.autocast`.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._casts: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}
        """Weights with what they were cast to, by identity and type."""
        library: Any = torch.library  # torch publishes no types for it
        self._library = library.Library("aten", "IMPL")
        self._others = library.Library("_", "IMPL")
        self._others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        for full_name in torch._C._dispatch_get_all_op_names():
            namespace, _, name = full_name.partition("::")
            # Which overloads have a rule is for PyTorch to say; there are others for `out=`.
            if namespace == "aten" and has_kernel(full_name, "AutocastCUDA"):
                self._library.impl(name, self._kernel(name), "AutocastPrivateUse1")
        forget = torch.clear_autocast_cache

        def clear_autocast_cache() -> None:
            self._casts.clear()
            forget()

        torch.clear_autocast_cache = clear_autocast_cache

    def _kernel(self, full_name: str) -> Callable[..., Any]:
        """Return what an operator does under autocast."""
        name, _, overload = full_name.partition(".")
        function = getattr(getattr(torch.ops.aten, name), overload or "default")
        for names, run in (
            (LOWER_PRECISION, self._run_low),
            (FULL_PRECISION, self._run_full),
            (FULL_PRECISION_RESULT, self._run_to_full),
            (WIDEST, self._run_in_widest),
        ):
            if name in names:
                return functools.partial(self._without_autocast, run, function)
        return functools.partial(_refuse, name)

    def _without_autocast(
        self, run: Callable[..., Any], function: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # What the operator is made up of has been cast with it.
        with torch._C._DisableAutocast():
            return run(function, args, kwargs)

    def _run_low(self, function: Any, args: Any, kwargs: Any) -> Any:
        return self._call(function, args, kwargs, self._lower)

    def _run_full(self, function: Any, args: Any, kwargs: Any) -> Any:
        return self._call(function, args, kwargs, torch.float32)

    def _run_to_full(self, function: Any, args: Any, kwargs: Any) -> Any:
        typed = any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values()))
        if self._casts_to(args[0]) and not typed:
            kwargs = {**kwargs, "dtype": torch.float32}
        return function(*args, **kwargs)

    def _run_in_widest(self, function: Any, args: Any, kwargs: Any) -> Any:
        widest = self._lower
        for value in leaves((args, kwargs)):
            if self._casts_to(value):
                widest = torch.promote_types(widest, value.dtype)
        return self._call(function, args, kwargs, widest)

    @property
    def _lower(self) -> torch.dtype:
        return torch.get_autocast_dtype(self._device_type)

    def _casts_to(self, value: Any) -> bool:
        """Return True for what autocast may cast: the device's tensors of less than 64 bits."""
        return (
            isinstance(value, torch.Tensor)
            and value.device.type == self._device_type
            and value.is_floating_point()
            and value.dtype != torch.float64
        )

    def _call(self, function: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
        args, kwargs = replace((args, kwargs), lambda value: self._cast(value, dtype))
        return function(*args, **kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if not self._casts_to(value) or value.dtype == dtype:
            return value
        # A weight is used again and again, such as in every step of a recurrence.
        is_weight = value.requires_grad and value.is_leaf and not value._is_view()
        keeps = is_weight and dtype == self._lower and value.dtype == torch.float32
        if not (keeps and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        if (id(value), dtype) not in self._casts:
            self._casts[id(value), dtype] = value, value.to(dtype)
        return self._casts[id(value), dtype][1]


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    """Raise for an operator that autocast refuses on a GPU, or for which the rule is not known."""
    if name == "binary_cross_entropy":
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."
            " Use binary_cross_entropy_with_logits or BCEWithLogitsLoss."
        )
    raise NotModelled(f"aten::{name} under torch.autocast is not available on the virtual GPU")


def replace_autocast(device_type: str) -> None:
    """Have `torch.autocast` work on the device, also where a script names it `cuda`, as on a GPU.
    Scalers of gradients likewise.
    """
    for kind in (torch.autocast, torch.amp.GradScaler):
        # A script that names `cuda` means this device.
        kind.__init__ = _for_device(kind.__init__, device_type)  # type: ignore[method-assign]
    enter, rules = torch.autocast.__enter__, functools.cache(Autocast)

    def enter_autocast(context: torch.autocast) -> Any:
        if context._enabled and context.device == device_type:
            rules(device_type)  # looking for all rules takes a while: only where they are needed
        return enter(context)  # type: ignore[no-untyped-call]  # torch publishes no types for it

    torch.autocast.__enter__ = enter_autocast  # type: ignore[method-assign]  # as above


def _for_device(initialise: Callable[..., None], device_type: str) -> Callable[..., None]:
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def initialised(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        for name, value in given.arguments.items():
            if isinstance(value, str) and value == "cuda":
                given.arguments[name] = device_type
        initialise(*given.args, **given.kwargs)

    return initialised
