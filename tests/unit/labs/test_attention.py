"""The attention lab on the CPU: the shipped kernel, the solution and every variant answer right,
and the judge tells wrong from right.
"""

import ctypes
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bottleneck_lab.measure.channel.messages import Call
from bottleneck_lab.measure.channel.wire import pack, unpack_message

from ...modules import load_file

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
LAB = ROOT / "labs" / "fused-attention"
SOLUTION = ROOT / "solutions" / "fused-attention"
VARIANTS = sorted(
    path.parent
    for path in (ROOT / "tests" / "variants" / "fused-attention").glob("*/attention.cpp")
)
DEVICES = tomllib.loads((LAB / "lab.toml").read_text())["devices"]
SETTINGS = DEVICES["cpu"]["settings"]["judge"]

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to compile the kernels"
)


@pytest.fixture
def judge():
    return load_file(LAB / "judge.py", "attention_judge")


@pytest.fixture(scope="module")
def reference():
    return load_file(LAB / "reference.py", "attention_reference").load("cpu")


@pytest.fixture(scope="module", autouse=True)
def library_cache(request):
    with pytest.MonkeyPatch.context() as patch:
        if shutil.which("g++"):
            patch.setenv("LAB_CACHE", str(request.getfixturevalue("libraries")))
        yield


def attention_from(source: str, folder: Path, *flags: str):
    """The lab's binding with this kernel beside it, compiled with these flags as well."""
    shutil.copy(LAB / "attention.py", folder)
    (folder / "attention.cpp").write_text(source)
    binding = load_file(folder / "attention.py", "attention")
    binding.CPU_COMPILER = [*binding.CPU_COMPILER, *flags]
    attention, memory = binding.load("cpu"), np.empty(1 << 20, np.float32)

    def in_the_same_memory(*inputs):
        """As in a check: arrays of one shape have one address, whichever call they belong to."""
        arrays, at = [], 0
        for array in inputs[:3]:
            arrays.append(memory[at : at + array.size].reshape(array.shape))
            arrays[-1][...] = array
            at += array.size
        return attention(*arrays, *inputs[3:])

    return in_the_same_memory


def calls(judge, *, seed):
    """Every adversarial call and one call of each kind of case, at short lengths."""
    rng = np.random.default_rng(seed)
    shapes = [
        judge.Shape(1, 2, seq, dim, causal, threads)
        for seq, dim, causal, threads in [
            (193, 64, False, 1),
            (250, 128, True, 2),
            (384, 64, True, 1),
        ]
    ]
    return [
        *judge.adversarial(rng, SETTINGS),
        *((str(s), judge.make_inputs(rng, str(s), LAB, SETTINGS)) for s in shapes),
    ]


@needs_compiler
@pytest.mark.parametrize("flags", [[], ["-mno-avx512f"]], ids=["native", "avx2"])
@pytest.mark.parametrize(
    "folder", [LAB, SOLUTION, *VARIANTS], ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_every_right_kernel_is_accepted(folder, flags, judge, reference, tmp_path):
    attention = attention_from((folder / "attention.cpp").read_text(), tmp_path, *flags)
    for case, inputs in calls(judge, seed=3):
        assert (
            judge.judge(case, inputs, [attention(*inputs)], [reference(*inputs)], SETTINGS) is None
        )


def test_untimed_calls_have_fewer_heads_and_are_judged_as_strictly(judge, reference):
    rng = np.random.default_rng(5)
    case = str(judge.Shape(2, 6, 97, 64, True, 1))
    heads = []
    for _ in range(20):
        inputs = judge.untimed_inputs(rng, case, LAB, SETTINGS)
        answer = np.array(reference(*inputs))
        heads.append(answer.shape[0] * answer.shape[1])
        assert judge.judge(case, inputs, [answer], [answer.copy()], SETTINGS) is None
        wrong = answer.copy()
        wrong[0, -1, -1] *= 1.05
        assert judge.judge(case, inputs, [wrong], [answer], SETTINGS)
    assert min(heads) <= 3
    assert sum(heads) < 20 * 9


def test_a_missing_compiler_is_named_with_its_remedy(tmp_path):
    binding = load_file(LAB / "attention.py", "attention_without_compiler")
    source = tmp_path / "kernel.cpp"
    source.write_text("int one = 1;\n")
    with pytest.raises(
        binding.CompilerError, match="no-such-compiler is not installed here: `lab doctor`"
    ):
        binding.compiled(source, ["no-such-compiler"], ["no-such-linker"])


def refusal(source, judge, reference, folder):
    attention = attention_from(source, folder)
    complaints = (
        judge.judge(case, inputs, [attention(*inputs)], [reference(*inputs)], SETTINGS)
        for case, inputs in calls(judge, seed=4)
    )
    return next((complaint for complaint in complaints if complaint), None)


WRONG = {
    "no scale": (
        "1.4426950408889634f / std::sqrt(static_cast<float>(dim))",
        "1.4426950408889634f",
        "Off by",
    ),
    "mask one key too far": (
        "first_key + j > first_query + i",
        "first_key + j > first_query + i + 1",
        "Off by",
    ),
    "no running maximum": (
        "b.decay[i] = exp2_negative(b.top[i] - top);",
        "b.decay[i] = 1.0f;",
        "Off by",
    ),
    "a maximum that starts at -20000": (
        "b.top + kQueries, -1e30f",
        "b.top + kQueries, -20000.0f",
        "far below zero",
    ),
    "a maximum of 0 where nothing was seen so far": (
        "b.top[i] = top;",
        "b.top[i] = top > -1e29f ? top : 0.0f;",
        "hidden, then low",
    ),
    "weights where no key is seen": (
        "b.sum[i] > 0.0f ? b.out[i][d] / b.sum[i] : 0.0f",
        "b.out[i][d] / b.sum[i]",
        "not a number",
    ),
    "a hidden score taken for a small one": (
        "top = weights[j] > top ? weights[j] : top;",
        "top = (weights[j] = std::max(weights[j], -1e30f)) > top ? weights[j] : top;",
        "Off by",
    ),
    "lower precision": (
        "weights[j] = exp2_negative(weights[j] - top);",
        "weights[j] = exp2_negative(static_cast<float>(static_cast<_Float16>(weights[j] - top)));",
        "Off by",
    ),
    "a tile that is known by its address and first number": (
        "void transpose(const float* k, int keys, int dim, Block& b) {\n",
        """void transpose(const float* k, int keys, int dim, Block& b) {
    static thread_local float tile[kMaxDim][kKeys], first = 0.0f;
    static thread_local const float* last = nullptr;
    struct Keep {
        Block& b;
        ~Keep() { std::copy(&b.keys[0][0], &b.keys[0][0] + kMaxDim * kKeys, &tile[0][0]); }
    } keep{b};
    if (last == k && first == k[0]) {
        std::copy(&tile[0][0], &tile[0][0] + kMaxDim * kKeys, &b.keys[0][0]);
        return;
    }
    last = k, first = k[0];
""",
        "a key changed",
    ),
    "last row forgotten": (
        "i < queries; ++i) {\n        for (int d = 0; d < dim; ++d) out",
        "i < queries - 1; ++i) {\n        for (int d = 0; d < dim; ++d) out",
        "never written",
    ),
}


@needs_compiler
@pytest.mark.parametrize("fault", WRONG)
def test_wrong_kernels_are_refused(fault, judge, reference, tmp_path):
    old, new, words = WRONG[fault]
    source = (LAB / "attention.cpp").read_text()
    assert old in source
    assert words in refusal(source.replace(old, new), judge, reference, tmp_path)


@pytest.mark.parametrize(
    "kind", ["large logits", "huge negative", "far below zero", "one loud key", "normal"]
)
@pytest.mark.parametrize("seq", [1, 2, 17])
def test_another_order_of_summation_is_as_right_even_where_the_reference_was_lucky(
    judge, kind, seq
):
    def in_float32(q, k, v, order):
        scores = (q[..., order] @ k[..., order].swapaxes(-1, -2)) / np.float32(8)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True)) @ v

    rng, shape = np.random.default_rng(seq), judge.Shape(2, 3, seq, 64, False, 1)
    for _ in range(300):
        q, k, v = judge._extreme(rng, kind, shape)
        reference, answer = (
            in_float32(q, k, v, np.arange(64)),
            in_float32(q, k, v, rng.permutation(64)),
        )
        assert judge.judge(str(shape), [q, k, v, 0, 1], [answer], [reference], {}) is None


@needs_compiler
def test_a_compiler_error_names_the_learners_line(tmp_path):
    with pytest.raises(RuntimeError, match=r"attention.cpp:3:") as caught:
        attention_from("// one\n// two\nint x = ;\n", tmp_path)
    assert caught.value.reason == "does not compile"


@needs_compiler
def test_a_kernel_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))
    source = (LAB / "attention.cpp").read_text()
    attention_from(source, tmp_path)
    monkeypatch.setenv("PATH", "")
    attention_from(source, tmp_path)
    with pytest.raises(RuntimeError, match=r"g\+\+ is not installed"):
        attention_from(source + "// changed\n", tmp_path)


def test_cases_are_drawn_within_their_bands_with_the_tail_asked_for(judge):
    for seed in range(30):
        names = judge.cases(np.random.default_rng(seed), SETTINGS)
        assert len(names) == len(SETTINGS["bands"])
        for name, band in zip(names, SETTINGS["bands"], strict=True):
            shape = judge.parse(name)
            assert str(shape) == name
            assert band["length"][0] <= shape.seq <= band["length"][1] + judge.TILE
            assert shape.seq % judge.TILE == band["tail"]
            assert (shape.dim, shape.causal, shape.threads) == (
                band["dim"],
                band["causal"],
                band.get("threads", 1),
            )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_check_holds_short_middle_and_long_lengths_none_of_which_fills_its_last_tile(
    judge, device
):
    bands = {
        "cpu": {(129, 192): 1, (193, 330): 2, (385, 640): 2, (769, 960): 2},
        "cuda": {(449, 1100): 2, (1793, 2304): 2, (4033, 8192): 2},
    }
    drawn = set()
    for seed in range(30):
        names = judge.cases(np.random.default_rng(seed), DEVICES[device]["settings"]["judge"])
        lengths = [judge.parse(name).seq for name in names]
        drawn |= {*lengths}
        for (low, high), count in bands[device].items():
            assert sum(low <= length <= high for length in lengths) == count, names
        assert [length % 64 for length in lengths].count(8) >= 2
        assert all(length % 64 for length in lengths)
    assert device == "cuda" or {200, 264, 328} <= drawn


def test_the_same_inputs_must_give_the_same_bits(judge):
    shape, rng = judge.Shape(1, 1, 33, 64, False), np.random.default_rng(0)
    case = f"{shape}, asked twice"
    inputs = judge.make_inputs(rng, str(shape), LAB, SETTINGS)
    right = judge.exact(*(x[0] for x in inputs[:3]), False).astype(np.float32)[None]
    other = right.copy()
    other[0, 0, 0, 0] = np.nextafter(other[0, 0, 0, 0], np.float32(9))
    assert judge.judge(case, inputs, [right], [right], SETTINGS) is None
    assert "two different answers" in judge.judge(case, inputs, [other], [right], SETTINGS)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_gpu_cases_are_judged_in_their_own_precision(judge, dtype):
    """Several launches on rolled queries come back as one weighted sum."""
    shape, rng = judge.Shape(2, 2, 65, 64, True, dtype=dtype, launches=3), np.random.default_rng(1)
    inputs = judge.make_inputs(rng, str(shape), LAB, SETTINGS)
    q, k, v = (judge.values(x).reshape(4, 65, 64) for x in inputs[:3])
    right = sum(
        w * judge.exact(np.roll(q, i, 0), k, v, True) for i, w in enumerate(inputs[4])
    ).astype(np.float32)
    assert judge.judge(str(shape), inputs, [right], [right], SETTINGS) is None
    assert "Off by" in judge.judge(str(shape), inputs, [right * 1.05], [right], SETTINGS)
    assert "never written" in judge.judge(
        str(shape), inputs, [np.full_like(right, np.nan)], [right], SETTINGS
    )
    assert "float32" in judge.judge(
        str(shape), inputs, [right.astype(np.float64)], [right], SETTINGS
    )


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_no_launch_of_a_gpu_call_is_asked_what_another_was_and_both_sides_ask_the_same(
    torch, judge, monkeypatch, dtype
):
    """On the CPU, with the float64 result in the kernel's place: more launches than heads, which
    rolling heads alone would repeat.
    """
    monkeypatch.syspath_prepend(str(LAB))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setitem(sys.modules, "attention_triton", SimpleNamespace(ENABLED=False))
    binding, asked = load_file(LAB / "attention.py", "attention_loop"), []

    def forward(q, k, v, out, heads, seq, dim, causal, bf16, stream):
        at = [
            (ctypes.c_uint16 * (heads * seq * dim)).from_address(place) for place in (q, k, v, out)
        ]
        q, k, v, out = (
            torch.frombuffer(x, dtype=(torch.bfloat16 if bf16 else torch.float16)).view(
                heads, seq, dim
            )
            for x in at
        )
        asked.append(hash(bytes(at[0])))
        out.copy_(
            torch.from_numpy(judge.exact(*(x.double().numpy() for x in (q, k, v)), bool(causal)))
        )
        return 0

    monkeypatch.setattr(
        binding, "build_cuda", lambda *_: SimpleNamespace(attention_forward=forward)
    )
    shape = judge.Shape(1, 2, 33, 64, True, dtype=dtype, launches=7)
    inputs = judge.make_inputs(np.random.default_rng(0), str(shape), LAB, SETTINGS)
    ours = binding.load("cuda")(*inputs)
    theirs = load_file(LAB / "reference.py", "reference_loop").load("cuda")(*inputs)
    assert len(set(asked)) == 7
    right = judge._truth(shape, inputs, judge.Sample(np.arange(2), np.arange(33))).astype(
        np.float32
    )
    assert judge.judge(str(shape), inputs, [ours], [right], SETTINGS) is None
    assert judge.judge(str(shape), inputs, [theirs], [right], SETTINGS) is None
    sent = unpack_message(pack(Call(judge.idle(inputs)))).inputs
    idle = [np.array(value) if isinstance(value, np.ndarray) else value for value in sent]
    for attention in (
        binding.load("cuda"),
        load_file(LAB / "reference.py", "reference_loop").load("cuda"),
    ):
        answer = attention(*idle)
        assert (answer.shape, np.abs(answer).max(), len(set(asked))) == (ours.shape, 0, 7)


def _weights(scores):
    """Relative to the largest of each row, as kernels take them."""
    return (scores - scores.amax(-1, keepdim=True)).exp()


def _attention(q, k, v, mask, *, fold=None, products=None, scores=None, weights=None, values=None):
    """One launch in float32 but for what is rounded to a format: q with the scale folded in, q and
    k, scores, weights, and v.

    The answer is rounded to that of v.
    """
    rounded = lambda x, kind: x.float() if kind is None else x.to(kind).float()  # noqa: E731 - one line, used five times
    scaled = rounded(q.float() / q.shape[-1] ** 0.5, fold) * q.shape[-1] ** 0.5
    found = rounded(scaled, products) @ rounded(k, products).mT / q.shape[-1] ** 0.5
    seen = _weights(rounded(found, scores) + mask)
    return (rounded(seen, weights) @ rounded(v, values) / seen.sum(-1, keepdim=True)).to(v.dtype)


def _in_tiles(q, k, v, mask, kind):
    """The largest score as it is known so far, 64 keys at a time, and all before scaled again."""
    import torch

    scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5 + mask
    top, total, out = torch.full((*q.shape[:-1], 1), -1e30), 0.0, torch.zeros(q.shape)
    for begin in range(0, scores.shape[-1], 64):
        tile = scores[..., begin : begin + 64]
        higher = torch.maximum(top, tile.amax(-1, keepdim=True))
        part, again = (tile - higher).exp(), (top - higher).exp()
        total = total * again + part.sum(-1, keepdim=True)
        out = out * again + part.to(kind).float() @ v[..., begin : begin + 64, :].float()
        top = higher
    return (out / total).to(kind)


def _normalised_first(q, k, v, mask, kind):
    weights = (q.float() @ k.float().mT / q.shape[-1] ** 0.5 + mask).softmax(-1)
    return (weights.to(kind).float() @ v.float()).to(kind)


def _queries_ignored(v, mask):
    seen = mask.isfinite().float()
    return seen @ v.float() / seen.sum(-1, keepdim=True)


def _launches(torch, q, k, v, mask, kind):
    """What right kernels that round in different places answer, and what is less than was asked
    for. q: launches x heads x seq x dim.
    """
    eight = torch.float8_e4m3fn
    right = {
        "tiles": _in_tiles(q, k, v, mask, kind),
        "normalised first": _normalised_first(q, k, v, mask, kind),
        "scale in q": _attention(q, k, v, mask, fold=kind, weights=kind),
        "16-bit scores": _attention(q, k, v, mask, scores=kind, weights=kind),
    }
    wrong = {
        "eight-bit q and k": _attention(q, k, v, mask, products=eight, weights=kind),
        "eight-bit weights and v": _attention(q, k, v, mask, weights=eight, values=eight),
        "no queries": _queries_ignored(v, mask),
    }
    return right, wrong


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "launches"), [("fp16", 80), ("bf16", 80), ("bf16", 320)])
def test_many_launches_in_half_precision_are_told_from_less_work(
    torch, judge, monkeypatch, dtype, launches, causal
):
    """The reference rounds as FlashAttention-2 does. Right kernels would pass with half of what is
    allowed, wrong ones fail with one and a half times that.

    Wrong are: eight bits, no look at the queries, one launch of twenty left out.
    """
    shape = judge.Shape(1, 2, 65, 64, causal, dtype=dtype, launches=launches)
    inputs = judge.make_inputs(np.random.default_rng(0), str(shape), LAB, SETTINGS)
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    q, k, v = (torch.from_numpy(judge.values(array))[0].to(kind) for array in inputs[:3])
    q = torch.stack([q.roll(shift // 2, 2).roll(shift, 0) for shift in range(launches)])
    mask = torch.full((65, 65), -np.inf).triu(1) if causal else torch.zeros(65, 65)
    right, wrong = _launches(torch, q, k, v, mask, kind)
    right["reference"] = _attention(q, k, v, mask, weights=kind)
    wrong["no queries"] = wrong["no queries"].expand(q.shape)
    forgotten = (torch.arange(launches) % 20 == 7)[:, None, None, None]
    wrong["left out"] = torch.where(forgotten, wrong["no queries"], right["tiles"].float())
    weights = torch.from_numpy(inputs[4])
    right, wrong = (
        {
            name: torch.einsum("n,n...->...", weights, answer.float()).numpy()
            for name, answer in answers.items()
        }
        for answers in (right, wrong)
    )

    def told(answers, allowed):
        with monkeypatch.context() as patch:
            patch.setattr(judge, "ERROR_FACTOR", allowed * judge.ERROR_FACTOR)
            patch.setattr(
                judge,
                "ERROR_FLOOR",
                {name: allowed * floor for name, floor in judge.ERROR_FLOOR.items()},
            )
            return {
                name: judge.judge(str(shape), inputs, [answer], [right["reference"]], SETTINGS)
                for name, answer in answers.items()
            }

    assert set(told(right, 0.5).values()) == {None}
    assert all(complaint and "Off by" in complaint for complaint in told(wrong, 1.5).values()), (
        told(wrong, 1.5)
    )


def test_the_benchmark_loads_every_kernel_of_a_gpu(torch, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "attention_triton", raising=False)
    benchmark = load_file(ROOT / "benchmarks" / "attention.py", "attention_benchmark")
    load = benchmark.load_module

    def uncompiled(path, name):
        module = load(path, name)
        module.build_cuda = lambda *_: SimpleNamespace(attention_forward=None)
        return module

    monkeypatch.setattr(benchmark, "load_module", uncompiled)
    assert {"shipped", "solution", "mma-sync"} <= benchmark.kernels("cuda", tmp_path).keys()
    sys.modules.pop("attention_triton")
    work = [
        4 * heads * length**2 * dim / (1 + causal)
        for heads, length, dim, causal in benchmark.shapes("cuda", [1024, 2048])
    ]
    assert work == pytest.approx([benchmark.WORK_FLOP["cuda"] / benchmark.LAUNCHES] * 8, rel=0.2)


@needs_compiler
def test_the_benchmark_hands_its_flags_to_the_compiler(tmp_path):
    benchmark = load_file(ROOT / "benchmarks" / "attention.py", "attention_benchmark")
    with pytest.raises(RuntimeError, match="no-such-instructions"):
        benchmark.kernels("cpu", tmp_path, ("-mno-such-instructions",))


def test_what_a_call_copies_is_no_part_of_its_launches_time(monkeypatch):
    benchmark = load_file(ROOT / "benchmarks" / "attention.py", "attention_benchmark")
    monkeypatch.setattr(
        benchmark, "elapsed", lambda _side, call: 5.0 + (len(call[4]) if len(call) == 6 else 0)
    )
    assert benchmark.seconds(None, [0, 0, 0, 1, np.ones(129, np.float32), 0]) == 128
    assert benchmark.seconds(None, [0, 0, 0, 1, 2]) == 5


@needs_compiler
def test_the_workload_runs_alone(tmp_path, capsys, monkeypatch):
    for name in ("attention.py", "attention.cpp", "reference.py"):
        shutil.copy(LAB / name, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "reference", raising=False)
    load_file(tmp_path / "attention.py", "attention").main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    # The question about the mask is answered by these two.
    plain, masked = (line.split() for line in lines[-2:])
    assert (plain[:3], plain[3], masked[3]) == (masked[:3], "full", "causal")
    sys.modules.pop("reference", None)


def test_the_gpu_cases_fit_the_shared_memory(judge):
    settings = tomllib.loads((LAB / "lab.toml").read_text())["devices"]["cuda"]["settings"]
    for seed in range(20):
        for shape in map(judge.parse, judge.cases(np.random.default_rng(seed), settings["judge"])):
            inputs = 3 * shape.batch * shape.heads * shape.seq * shape.dim * 2
            assert inputs < 0.9 * settings["arena_mb"] * 2**20 / 2


def test_a_backend_that_pytorch_lacks_answers_with_nothing(judge, monkeypatch):
    """On the host, where there is no cuDNN: the reference lives on, and so does its own backend."""
    reference = load_file(LAB / "reference.py", "attention_reference")
    torch = reference.torch
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    shape = judge.Shape(1, 2, 65, 64, True, 1, "fp16", 3)
    inputs = judge.make_inputs(np.random.default_rng(0), str(shape), LAB, SETTINGS)
    calls = judge.rivals(inputs)
    assert list(calls) == ["FlashAttention-2", "cuDNN", "memory-efficient"]
    answers = (inputs, calls["FlashAttention-2"], calls["cuDNN"])
    own, pinned, nothing = (reference.load("cuda")(*call) for call in answers)
    assert nothing.size == 0
    assert "must be float32 of shape" in judge.judge(str(shape), inputs, [nothing], [own], SETTINGS)
    assert np.array_equal(own, pinned)
