"""The arithmetic of products on the virtual GPU: PyTorch's switches for it, and autocast."""

import itertools
import re
import socket
from pathlib import Path

import msgspec
import pytest
import torch

from bottleneck_lab.measure.virtual_gpu import autocast
from bottleneck_lab.measure.virtual_gpu.arithmetic import Tf32
from bottleneck_lab.measure.virtual_gpu.books import Begin
from bottleneck_lab.measure.virtual_gpu.codec import Handle
from bottleneck_lab.measure.virtual_gpu.engine import Engine, Server
from bottleneck_lab.measure.virtual_gpu.frames import Frames
from bottleneck_lab.measure.virtual_gpu.spec import H200

from .device_program import run

SLOW = msgspec.structs.replace(
    H200,
    flops_per_s=1e9,
    tf32_flops_per_s=4e9,
    half_flops_per_s=8e9,
    bytes_per_s=1e15,
    reduction_us=0.0,
    start_us=0.0,
    launch_us=0.0,
)
"""A device whose products take as long as their arithmetic."""
PRODUCT_US = 2 * 64**3 / 1e3
NUMBERS = itertools.count(-1, -1)
"""Of tensors, as a program gives them."""


def product(
    engine: Engine, left: torch.Tensor, right: torch.Tensor, name: str = "mm"
) -> tuple[torch.Tensor, float]:
    """Return the values of a product on the device, and how long it took, µs."""
    sent = [Handle(next(NUMBERS)) for _ in range(2)]
    for handle, each in zip(sent, (left, right), strict=True):
        engine.upload(None, each, True, True, "", handle.number)
    rest = [None, [1], [0], [1], False, [0], 1] if name == "convolution" else []
    before_us = engine.clock.device_us = engine.clock.host_us
    made = engine.call(name, "default", [*sent, *rest], {}, "")
    took_us = engine.clock.device_us - before_us
    return engine.download(Handle(made.number), "copy_", True, True, ""), took_us


def off_by(values: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> float:
    """Return by what share of its norm a product is off."""
    exact = left.double() @ right.double()
    return float((values.double() - exact).norm() / exact.norm())


@pytest.fixture
def squares() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(2, 64, 64, generator=generator)
    return left, right


def test_a_product_in_tf32_reads_ten_bits_and_is_as_fast_as_tensor_cores(squares) -> None:
    engine = Engine(SLOW)
    values, took_us = product(engine, *squares)
    assert off_by(values, *squares) < 1e-6
    assert took_us == pytest.approx(PRODUCT_US)
    engine.set_tf32(True, True)
    values, took_us = product(engine, *squares)
    assert 1e-4 < off_by(values, *squares) < 1e-3
    assert took_us == pytest.approx(PRODUCT_US / 4)
    values, took_us = product(engine, *(each.double() for each in squares))
    assert off_by(values, *squares) < 1e-6, "only float32 has TF32"
    assert took_us == pytest.approx(PRODUCT_US)


def test_tf32_rounds_to_the_nearest_and_leaves_what_is_no_number() -> None:
    step = 2.0**-10
    values = torch.tensor(
        [[1 + 0.5 * step, 1 + 0.51 * step, 1 + 1.5 * step, -1 - 0.51 * step, torch.inf, torch.nan]]
    )
    engine = Engine(SLOW)
    engine.set_tf32(True, True)
    rounded, _ = product(engine, values.T.contiguous(), torch.ones(1, 1))
    wanted = torch.tensor([[1, 1 + step, 1 + 2 * step, -1 - step, torch.inf, torch.nan]]).T
    assert torch.equal(rounded.nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_convolutions_are_in_tf32_unless_it_is_forbidden(squares) -> None:
    left, right = squares
    signal, weights = left.T[None].contiguous(), right.T[:, :, None].contiguous()
    for allowed in (True, False):
        engine = Engine(SLOW)
        if not allowed:
            engine.set_tf32(False, False)
        values, took_us = product(engine, signal, weights, "convolution")
        assert (off_by(values[0].T, left, right) > 1e-4) is allowed
        assert took_us == pytest.approx(PRODUCT_US / (4 if allowed else 1))


def test_a_run_has_the_switches_that_the_program_set_in_the_one_before() -> None:
    program, unused, owner, verifier = *socket.socketpair(), *socket.socketpair()
    with program, unused, owner, verifier:
        server = Server(program, owner)
        server._engine.set_tf32(True, False)
        Frames(verifier).send(msgspec.msgpack.encode(Begin(SLOW, recording=False)))
        server._answer_owner()
    assert server._engine.tf32 == Tf32(True, False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_the_bits_are_added_up_in_float32_and_rounded_once(dtype, squares) -> None:
    left, right = (each.to(dtype) for each in squares)
    values, took_us = product(Engine(SLOW), left, right)
    assert torch.equal(values, (left.float() @ right.float()).to(dtype))
    assert took_us == pytest.approx(PRODUCT_US / 8)


def test_autocast_has_the_lists_of_pytorch() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = header.read_text(encoding="utf-8")
    for name, ours in (
        ("LOWER_PRECISION_FP", autocast.LOWER_PRECISION),
        ("FP32", autocast.FULL_PRECISION - {"norm"}),  # it is listed by its signature
        ("FP32_SET_OPT_DTYPE", autocast.FULL_PRECISION_RESULT),
        ("PROMOTE", autocast.WIDEST),
    ):
        (listed,) = re.findall(rf"#define AT_FORALL_{name}\(_\)(.*?)\n\n", text, re.DOTALL)
        names = set(re.findall(r"_\((\w+)", listed))
        # An operator that only another version of PyTorch has is refused there.
        assert not {each for each in names ^ ours if hasattr(torch.ops.aten, each)} - {
            "_thnn_fused_lstm_cell",  # kernels that CUDA alone has
            "_thnn_fused_gru_cell",
        }


PROGRAM = """
from torch.nn import functional as F

facts = {}
torch.manual_seed(0)
left, right = torch.randn(64, 64), torch.randn(64, 64)
exact = left.double() @ right.double()
a, b = left.to(device), right.to(device)

def is_exact(product):
    return bool((product.cpu().double() - exact).norm() < 1e-6 * exact.norm())

def convolved():
    return F.conv1d(a.T[None], b.T[:, :, None])[0].T

matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
facts["switches"] = []
for value, switch in {
    "": lambda on: None,
    "high": lambda on: torch.set_float32_matmul_precision("high" if on else "highest"),
    "medium": lambda on: torch.set_float32_matmul_precision("medium" if on else "highest"),
    "allow_tf32": lambda on: setattr(matmul, "allow_tf32", on),
    "matmul": lambda on: setattr(matmul, "fp32_precision", "tf32" if on else "none"),
    "all": lambda on: setattr(torch.backends, "fp32_precision", "tf32" if on else "none"),
}.items():
    switch(True)
    on = is_exact(a @ b)
    switch(False)
    facts["switches"].append([value, on, is_exact(a @ b)])
facts["convolution"] = [is_exact(convolved())]
cudnn.enabled = False
facts["convolution"].append(is_exact(convolved()))
cudnn.enabled, cudnn.allow_tf32 = True, False
facts["convolution"].append(is_exact(convolved()))

rnn, x = nn.RNN(4, 4), torch.ones(3, 2, 4)
with cudnn.flags(enabled=False):
    there = rnn(x)[0]
    facts["recurrent"] = bool(torch.allclose(rnn.to(device)(x.to(device))[0].cpu(), there))

layer = nn.Linear(64, 64).to(device)
launches = []
run = driver.run
driver.run = lambda function, *rest: launches.append(function._schema.name) or run(function, *rest)
def types():
    with torch.autocast("cuda", torch.bfloat16):
        y = layer(a)
        results = [y, a @ b, layer(y), F.gelu(y), y + a, torch.exp(y), y.sum(), y.softmax(1),
                   torch.linalg.vector_norm(y), y.norm(), F.layer_norm(y, (64,)),
                   torch.addcmul(a, y, y), torch.addcmul(y, y, y), a.double() @ b.double(),
                   F.cross_entropy(y, torch.zeros(64, dtype=torch.long, device=device)),
                   torch.sum(y, 1, dtype=torch.bfloat16)]
        with torch.autocast("cuda", enabled=False):
            results.append(layer(a))
    return [str(result.dtype).removeprefix("torch.") for result in results]
facts["types"] = types()
launches.clear()
with torch.autocast(device.type, torch.bfloat16):
    twice = layer(a) + layer(a)
facts["casts"] = launches.count("aten::_to_copy")
twice.sum().backward()
facts["gradient"] = str(layer.weight.grad.dtype)
with torch.no_grad():
    layer.weight.zero_()
with torch.autocast(device.type, torch.bfloat16):
    facts["forgotten"] = bool((layer(a) == layer.bias.bfloat16()).all())

try:
    with torch.autocast(device.type):
        F.binary_cross_entropy(a.sigmoid(), b.sigmoid())
except RuntimeError as error:
    facts["unsafe"] = str(error)

scaler, optimizer = torch.amp.GradScaler(), torch.optim.SGD(layer.parameters(), lr=0.1)
losses = []
for _ in range(3):
    with torch.autocast(device.type):
        loss = layer(a).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
facts["scaled"] = [scaler.get_scale(), losses[-1] < losses[0]]
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The output of a program that ran on the virtual GPU."""
    return run(PROGRAM, tmp_path_factory.mktemp("program"))[0]


def test_every_switch_for_tf32_is_followed_and_can_be_undone(seen: dict) -> None:
    ways = ["high", "medium", "allow_tf32", "matmul", "all"]
    assert seen["switches"] == [["", True, True], *([way, False, True] for way in ways)]
    assert seen["convolution"] == [False, True, True]


def test_a_recurrence_runs_in_its_parts_without_cudnn(seen: dict) -> None:
    assert seen["recurrent"]


def test_autocast_gives_the_types_that_it_gives_on_a_gpu(seen: dict) -> None:
    low, full = "bfloat16", "float32"
    assert seen["types"] == [
        *(low, low, low, low, full, full, full, full),
        *(full, full, full),
        *(full, low, "float64"),
        *(full, low, full),
    ]
    assert seen["gradient"] == "torch.float32"


def test_a_weight_is_cast_once_in_a_region_and_again_in_the_next(seen: dict) -> None:
    assert seen["casts"] == 2 + 2, "the input twice, weight and bias once each"
    assert seen["forgotten"]


def test_what_autocast_refuses_on_a_gpu_it_refuses_here(seen: dict) -> None:
    assert "unsafe to autocast" in seen["unsafe"]


def test_gradients_are_scaled(seen: dict) -> None:
    assert seen["scaled"] == [2.0**16, True]
