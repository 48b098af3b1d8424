"""Kernels keep what tells them apart, however long their names are."""

from __future__ import annotations

import pytest

from bottleneck_lab.report.kernel_names import cut_name, short_name, short_names

NATIVE = "void at::native::"
MEAN = (
    "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float,"
    " float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float,"
    " float, float, float>, unsigned int, float, 4, 4>)"
)


def elementwise(functor: str, vector: int = 4, arrays: int = 3) -> str:
    return (
        f"{NATIVE}vectorized_elementwise_kernel<{vector}, at::native::{functor}, std::array<char*,"
        f" {arrays}ul> >(int, at::native::{functor}, std::array<char*, {arrays}ul>)"
    )


BINARY = "BinaryFunctor<float, float, float, at::native::binary_internal::{}Functor<float> >"
SIGMOID = (
    "sigmoid_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()()"
    " const::{lambda()#2}::operator()() const::{lambda(float)#1}"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::conv2d", "aten::conv2d"),
        ("autograd::engine::evaluate_function: MmBackward0",) * 2,
        ("ProfilerStep#1", "ProfilerStep#1"),
        ("Memcpy DtoH (Device -> Pageable)",) * 2,
        ("<unfinished", "<unfinished"),
        ("void ", "void "),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n", "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n"),
        (f"{NATIVE}{MEAN}", "reduce_kernel<MeanOps>"),
        (f"{NATIVE}{MEAN}"[:150] + "…", "reduce_kernel<MeanOps>"),
        (elementwise("CUDAFunctor_add<float>"), "vectorized_elementwise_kernel<CUDAFunctor_add>"),
        (elementwise(BINARY.format("Mul")), "vectorized_elementwise_kernel<MulFunctor>"),
        (elementwise(SIGMOID), "vectorized_elementwise_kernel<sigmoid_kernel_cuda>"),
        (
            elementwise(SIGMOID.replace("{", "[").replace("}", "]")),
            "vectorized_elementwise_kernel<sigmoid_kernel_cuda>",
        ),
        (
            f"{NATIVE}(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous"
            " namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::"
            "BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(int)",
            "multi_tensor_apply_kernel<BinaryOpListAlphaFunctor, plus>",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nt_align1>(int)",
            "cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nt_align1>",
        ),
        (
            "std::enable_if<true, void>::type internal::gemvx::kernel<int, int, float>(int)",
            "gemvx::kernel<…>",
        ),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, 10>(float*)",
            "softmax_warp_forward<…>",
        ),
        ("void cudnn::bn_fw_inf(float const*)", "cudnn::bn_fw_inf"),
        ("ncclKernel_allreduce (emulated: modelled link, not NCCL)", "allreduce (emulated)"),
    ],
)
def test_a_name_is_shortened_to_what_the_kernel_does(name, short):
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (
            ["void softmax<float, 10, false>(int)", "void softmax<float, 4, true>(int)"],
            ["softmax<…, 10>", "softmax<…, 4>"],
        ),
        (
            [elementwise("CUDAFunctor_add<float>"), elementwise("CUDAFunctor_add<long>")],
            [
                "vectorized_elementwise_kernel<CUDAFunctor_add, float>",
                "vectorized_elementwise_kernel<CUDAFunctor_add, long>",
            ],
        ),
        (
            [
                elementwise(BINARY.format("Mul")),
                elementwise(BINARY.format("Mul").replace("Binary", "AUnary")),
            ],
            [
                "vectorized_elementwise_kernel<MulFunctor, BinaryFunctor>",
                "vectorized_elementwise_kernel<MulFunctor, AUnaryFunctor>",
            ],
        ),
        (["void f<float>(int)", "void f<float>(long)"], ["f<…>", "f<…> (variant 2)"]),
        ([f"{NATIVE}{MEAN}", "aten::mean"], ["reduce_kernel<MeanOps>", "aten::mean"]),
    ],
)
def test_names_that_would_be_alike_keep_what_differs(names, short):
    assert list(short_names(names).values()) == short


def test_no_two_names_are_alike_whatever_they_are():
    names = [elementwise(f"F{n % 3}<{kind}>", n) for n in range(9) for kind in ("int", "long")]
    names += ["void g<(Kind)0>(int)", "void g<(Kind)2>(int)", "void g(int)", "void g(long)"]
    assert len({*short_names(names).values()}) == len({*names})


def test_a_line_that_is_cut_keeps_its_number():
    """Lines of one file and function differ in nothing else."""
    cut = [cut_name(f"modeling_bert.py({n}): forward", 27) for n in (364, 465)]
    assert cut == ["modeling…t.py(364): forward", "modeling…t.py(465): forward"]


def test_an_emulated_kernel_is_shortened_like_a_real_one():
    name = "emulated: void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16>"
    assert short_name(name) == "emulated: nchwToNhwcKernel<…>"
    assert short_name("emulated: mm") == "emulated: mm"
