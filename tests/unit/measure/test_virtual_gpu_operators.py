"""The virtual GPU as a device: PyTorch's own samples of its operators give on it what they give on
the CPU, wait where a GPU waits, and what it lacks is in docs/emulation.md.
"""

import json
import random
import re
from pathlib import Path
from types import ModuleType

import pytest

from .device_program import run

ROOT = Path(__file__).parents[3]
SAMPLES = """
import random, warnings
torch.backends.cudnn.allow_tf32 = False  # on the CPU, convolutions read all bits
from itertools import islice
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

warnings.simplefilter("ignore")
torch.set_num_threads(1)
seed, count = json.loads(sys.argv[2])

def copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value

def sent(value):
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return device if value == "cpu" else value

def call(op, sample, convert):
    args, kwargs = tree_map(convert, ((sample.input, *sample.args), sample.kwargs))
    torch.manual_seed(3)
    driver.step(0)
    try:
        return tree_leaves(op.op(*args, **kwargs))
    finally:
        driver.step(0)

def difference(name, wanted, result):
    if not isinstance(wanted, torch.Tensor):
        return "" if wanted == result or wanted != wanted else f"{result}, not {wanted}"
    forms = [(each.shape, each.stride(), each.dtype) for each in (wanted, result)]
    if forms[0] != forms[1] or result.device != torch.device("virtual:0"):
        return f"{forms[1]} on {result.device}, not {forms[0]}"
    if "empty" in name or torch.allclose(wanted, result.cpu(), 1e-4, 1e-5, equal_nan=True):
        return ""
    return "other values"

def compare(op, sample, wanted):
    # The first call of a kind is answered, the next one is only launched.
    for _ in range(2):
        pairs = zip(wanted, call(op, sample, sent), strict=True)
        if wrong := "; ".join(filter(None, (difference(op.name, *pair) for pair in pairs))):
            return wrong
    return ""

operators = [op for op in op_db if torch.float32 in op.dtypes]
rows = []
with torch.no_grad():
    for op in random.Random(seed).sample(operators, count or len(operators)):
        for sample in islice(op.sample_inputs("cpu", torch.float32), 3):
            try:
                wanted = call(op, sample, copied)
            except Exception:
                continue  # what even the CPU cannot do
            wrong, missing, step = "", "", driver._steps
            try:
                wrong = compare(op, sample, wanted)
            except NotModelled as error:
                missing = str(error)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            rows.append([f"{op.name} {op.variant_test_name}".strip(), wrong, missing, step])
print(json.dumps(rows))
"""


WAITING = {
    *("allclose", "argwhere", "equal", "item", "masked_select", "nonzero", "unique"),
    *("unique_consecutive", "corrcoef", "cov", "multinomial", "normal", "nn.functional.ctc_loss"),
    "nn.functional.gaussian_nll_loss",  # checks that variances are positive
    *("narrow", "__getitem__", "index_put"),  # a start on the device, an index from the host
    *("linalg.cholesky", "linalg.inv", "linalg.ldl_factor", "linalg.lstsq", "linalg.lu_factor"),
    *("linalg.lstsq grad_oriented", "linalg.solve", "linalg.tensorinv", "linalg.tensorsolve"),
}
"""Operators that wait for the device in some or all of their samples. Those of `torch.masked` may,
too: they copy a constant there.
"""
REFUSED_ANYWHERE = {"tensor_split"}
"""Operators that take their second argument from the host alone, on a GPU as well."""


def missing_names() -> set[str]:
    """Return what docs/emulation.md lists as missing."""
    page = (ROOT / "docs" / "emulation.md").read_text(encoding="utf-8")
    table = page.partition("<!-- missing: begin -->")[2].partition("<!-- missing: end -->")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def judge(rows: list, waits: list[int]) -> set[str]:
    """Assert that every sample that ran is right; return the operators that waited."""
    assert [row for row in rows if row[1] and row[0] not in REFUSED_ANYWHERE] == []
    listed = missing_names()
    unlisted = [row for row in rows if row[2] and not any(map(row[2].startswith, listed))]
    assert unlisted == [], "name them in docs/emulation.md"
    ran = [(name, step) for name, _, missing, step in rows if not missing]
    return {name for name, step in ran if waits[step] and not name.startswith("masked.")}


def test_operators_drawn_at_random_do_on_the_device_what_they_do_on_the_cpu(tmp_path: Path) -> None:
    seed = random.randrange(1 << 16)
    rows, waits = run(SAMPLES, tmp_path, json.dumps([seed, 30]))
    assert len(rows) >= 30, seed
    assert judge(rows, waits) <= WAITING, seed


@pytest.mark.slow
def test_every_operator_does_on_the_device_what_it_does_on_the_cpu(tmp_path: Path) -> None:
    rows, waits = run(SAMPLES, tmp_path, json.dumps([0, 0]))
    assert len({name for name, *_ in rows}) > 600
    assert judge(rows, waits) == WAITING


MISSING = {
    "torch.compile": "torch.compile(nn.Linear(2, 2))",
    "torch.virtual.CUDAGraph": "torch.virtual.CUDAGraph()",
    "torch.virtual.Stream": "torch.virtual.Stream()",
    "torch.virtual.stream": "torch.virtual.stream(torch.virtual.current_stream())",
    "torch.Generator": "torch.Generator('virtual')",
    "torch.use_deterministic_algorithms": (
        "torch.use_deterministic_algorithms(True), torch.eye(2, device=device)"
    ),
    "torch.backends.cuda.matmul.allow_fp16_accumulation": (
        "torch.use_deterministic_algorithms(False),"
        " setattr(torch.backends.cuda.matmul, 'allow_fp16_accumulation', True),"
        " torch.eye(2, device=device).half() @ torch.eye(2, device=device).half()"
    ),
    "nn.RNN": "nn.RNN(2, 2).to(device)(torch.ones(1, 1, 2, device=device))",
    "nn.LSTM": "nn.LSTM(2, 2).to(device)(torch.ones(1, 1, 2, device=device))",
    "nn.GRU": "nn.GRU(2, 2).to(device)(torch.ones(1, 1, 2, device=device))",
    "torch.sparse_coo": "torch.eye(2, device=device).to_sparse()",
    "torch.sparse_csr": "torch.eye(2, device=device).to_sparse_csr()",
    "torch.complex32": "torch.ones(2, device=device).chalf()",
    "torch.uint64": "torch.zeros(2, dtype=torch.uint64, device=device)",
    "torch.float8_e5m2": "torch.zeros(2, device=device).to(torch.float8_e5m2)",
    "torch.qint8": "torch.quantize_per_tensor(torch.ones(2, device=device), 0.1, 0, torch.qint8)",
    "aten::set_": "torch.ones(2, device=device).set_(torch.ones(2, device=device))",
    "aten::_linear_cross_entropy_batch_chunked": (
        "nn.functional.linear_cross_entropy(torch.ones(2, 3, device=device), torch.ones(4, 3,"
        " device=device), torch.zeros(2, dtype=torch.long, device=device), options="
        "nn.LinearCrossEntropyOptions(batch_chunk_size=1))"
    ),
}
USE = """
from bottleneck_lab.measure.virtual_gpu.module import naming_what_is_missing
raised = []
for name, expression in json.loads(sys.argv[2]).items():
    try:
        with naming_what_is_missing():
            eval(expression)
    except (NotModelled, AttributeError):  # an earlier PyTorch lacks some of it itself
        raised.append(name)
print(json.dumps(raised))
"""


def test_the_page_lists_what_is_missing(tmp_path: Path) -> None:
    assert missing_names() == set(MISSING)
    raised, _ = run(USE, tmp_path, json.dumps(MISSING))
    assert raised == list(MISSING)


def test_what_a_program_asks_of_cuda_is_not_modelled(tmp_path: Path, torch: ModuleType) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU does it")
    asks = {name: name for name in ("torch.cuda.synchronize()", "torch.cuda.Stream()")}
    asks["to"] = "torch.ones(1).cuda()"
    asks["graph"] = "torch.cuda.CUDAGraph()"
    raised, _ = run(USE, tmp_path, json.dumps(asks))
    assert raised == list(asks)


def test_a_page_that_forgets_one_is_noticed() -> None:
    with pytest.raises(AssertionError, match="name them"):
        judge([["quantile", "", "torch.quint8 is not available on the virtual GPU", 0]], [0])
    with pytest.raises(AssertionError):
        judge([["add", "other values", "", 0]], [0])
