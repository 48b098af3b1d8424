"""The attention lab on the CPU: the shipped kernel, the solution and every variant answer right, and the judge tells wrong from right."""

import importlib.util
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "labs" / "fused-attention"
SOLUTION = ROOT / "solutions" / "fused-attention"
VARIANTS = sorted(path.parent for path in (ROOT / "tests" / "variants" / "fused-attention").glob("*/attention.cpp"))
SETTINGS = tomllib.loads((LAB / "lab.toml").read_text())["devices"]["cpu"]["settings"]

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the kernels")


def load_module(path: Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def judge():
    return load_module(LAB / "judge.py", "attention_judge")


@pytest.fixture(scope="module")
def reference():
    return load_module(LAB / "reference.py", "attention_reference").load("cpu")


@pytest.fixture(scope="module", autouse=True)
def library_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def attention_from(source: str, folder: Path):
    """The lab's binding with this kernel beside it."""
    shutil.copy(LAB / "attention.py", folder)
    (folder / "attention.cpp").write_text(source)
    return load_module(folder / "attention.py", "attention").load("cpu")


def calls(judge, *, seed):
    """Every adversarial call and one call of each kind of case, at short lengths."""
    rng = np.random.default_rng(seed)
    shapes = [
        judge.Shape(1, 2, seq, dim, causal, threads)
        for seq, dim, causal, threads in [(193, 64, False, 1), (250, 128, True, 2), (384, 64, True, 1)]
    ]
    return [
        *judge.adversarial(rng, SETTINGS),
        *((str(s), judge.make_inputs(rng, str(s), LAB, SETTINGS)) for s in shapes),
    ]


@needs_compiler
@pytest.mark.parametrize("folder", [LAB, SOLUTION, *VARIANTS], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_right_kernel_is_accepted(folder, judge, reference, tmp_path):
    attention = attention_from((folder / "attention.cpp").read_text(), tmp_path)
    for case, inputs in calls(judge, seed=3):
        assert judge.judge(case, inputs, [attention(*inputs)], [reference(*inputs)], SETTINGS) is None


def refusal(source, judge, reference, folder):
    attention = attention_from(source, folder)
    complaints = (
        judge.judge(case, inputs, [attention(*inputs)], [reference(*inputs)], SETTINGS)
        for case, inputs in calls(judge, seed=4)
    )
    return next((complaint for complaint in complaints if complaint), None)


WRONG = {
    "no scale": ("1.0f / std::sqrt(static_cast<float>(dim))", "1.0f", "Off by"),
    "mask one key too far": ("first_key + j <= first_query + i", "first_key + j <= first_query + i + 1", "Off by"),
    "no running maximum": ("const float decay = std::exp(b.top[i] - top);", "const float decay = 1.0f;", "Off by"),
    "weights where no key is seen": (
        "b.sum[i] > 0.0f ? b.out[i][d] / b.sum[i] : 0.0f",
        "b.out[i][d] / b.sum[i]",
        "not a number",
    ),
    "a hidden score taken for a small one": (
        "top = std::max(top, b.scores[i][j]);",
        "top = std::max(top, b.scores[i][j] = std::max(b.scores[i][j], -1e30f));",
        "Off by",
    ),
    "lower precision": (
        "b.scores[i][j] = sum * scale;",
        "b.scores[i][j] = static_cast<float>(static_cast<_Float16>(sum * scale));",
        "Off by",
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


@pytest.mark.parametrize("kind", ["large logits", "huge negative", "one loud key", "normal"])
@pytest.mark.parametrize("seq", [1, 2, 17])
def test_another_order_of_summation_is_as_right_even_where_the_reference_was_lucky(judge, kind, seq):
    def in_float32(q, k, v, order):
        scores = (q[..., order] @ k[..., order].swapaxes(-1, -2)) / np.float32(8)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True)) @ v

    rng, shape = np.random.default_rng(seq), judge.Shape(2, 3, seq, 64, False, 1)
    for _ in range(300):
        q, k, v = judge._extreme(rng, kind, shape)
        reference, answer = in_float32(q, k, v, np.arange(64)), in_float32(q, k, v, rng.permutation(64))
        assert judge.judge(str(shape), [q, k, v, 0, 1], [answer], [reference], {}) is None


@needs_compiler
@pytest.mark.parametrize("call", ["dlopen(const char*, int)", "cblas_sgemm()", "system(const char*)"])
def test_a_kernel_that_calls_a_library_is_not_even_loaded(call, tmp_path):
    name = call.split("(")[0]
    source = f'extern "C" int {call};\n' + (LAB / "attention.cpp").read_text().replace(
        "const int blocks =", f"(void)&{name}; (void){name}({_arguments(call)});\n    const int blocks ="
    )
    with pytest.raises(RuntimeError, match=rf"calls {name}: write the kernel without libraries"):
        attention_from(source, tmp_path)


def _arguments(call: str) -> str:
    return {"dlopen": '"x", 1', "cblas_sgemm": "", "system": '"x"'}[call.split("(")[0]]


@needs_compiler
def test_a_compiler_error_names_the_learners_line(tmp_path):
    with pytest.raises(RuntimeError, match=r"attention.cpp:3:"):
        attention_from("// one\n// two\nint x = ;\n", tmp_path)


@needs_compiler
def test_a_kernel_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))
    source = (LAB / "attention.cpp").read_text()
    attention_from(source, tmp_path)
    monkeypatch.setenv("PATH", "")
    attention_from(source, tmp_path)
    with pytest.raises(FileNotFoundError):
        attention_from(source + "// changed\n", tmp_path)


def test_cases_are_drawn_within_their_bands_and_odd_where_asked(judge):
    for seed in range(30):
        names = judge.cases(np.random.default_rng(seed), SETTINGS)
        assert len(names) == len(SETTINGS["bands"])
        for name, band in zip(names, SETTINGS["bands"], strict=True):
            shape = judge.parse(name)
            assert str(shape) == name
            assert band["length"][0] <= shape.seq <= band["length"][1] + 1
            assert shape.seq % 2 or not band.get("odd")
            assert (shape.dim, shape.causal, shape.threads) == (band["dim"], band["causal"], band.get("threads", 1))


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
    q, k, v = (np.asarray(x, dtype=np.float64).reshape(4, 65, 64) for x in inputs[:3])
    right = sum(w * judge.exact(np.roll(q, i, 0), k, v, True) for i, w in enumerate(inputs[4])).astype(np.float32)
    assert judge.judge(str(shape), inputs, [right], [right], SETTINGS) is None
    assert "Off by" in judge.judge(str(shape), inputs, [right * 1.05], [right], SETTINGS)
    assert "never written" in judge.judge(str(shape), inputs, [np.full_like(right, np.nan)], [right], SETTINGS)
    assert "float32" in judge.judge(str(shape), inputs, [right.astype(np.float64)], [right], SETTINGS)


@needs_compiler
def test_the_workload_runs_alone(tmp_path, capsys, monkeypatch):
    for name in ("attention.py", "attention.cpp", "reference.py"):
        shutil.copy(LAB / name, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "reference", raising=False)
    load_module(tmp_path / "attention.py", "attention").main()
    assert len(capsys.readouterr().out.splitlines()) == 4
    sys.modules.pop("reference", None)


def test_the_gpu_cases_fit_the_shared_memory(judge):
    settings = tomllib.loads((LAB / "lab.toml").read_text())["devices"]["cuda"]["settings"]
    for seed in range(20):
        for shape in map(judge.parse, judge.cases(np.random.default_rng(seed), settings)):
            inputs = 3 * shape.batch * shape.heads * shape.seq * shape.dim * (4 if shape.dtype == "bf16" else 2)
            assert inputs < 0.9 * settings["arena_mb"] * 2**20 / 2
