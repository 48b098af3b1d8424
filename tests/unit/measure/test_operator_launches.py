"""The package knows as many launches of an operator as the virtual GPU counts and the labs' rules
have.
"""

import re

from bottleneck_lab.catalog import load_labs
from bottleneck_lab.report.operator_launches import OPERATORS

from .device_program import count_launches

PROGRAM = """
from torch.nn import functional as F



def needing_gradient(*shape):
    return torch.randn(shape, device=device, requires_grad=True)


batch = torch.randn(4, 8, 6, device=device)  # needs no gradient
computed, other, rows = (needing_gradient(*shape) for shape in ((4, 8, 6), (4, 8, 6), (32, 6)))
classes = torch.zeros(32, dtype=torch.long, device=device)
tokens, mask = torch.zeros(4, 8, dtype=torch.long, device=device), batch > 0
weight, each = needing_gradient(4, 6, 6), needing_gradient(4, 1, 6)
flat, bias, scale = (needing_gradient(*shape) for shape in ((6, 6), (6,), (6,)))
scalar = needing_gradient()
parameters = [weight, each, flat, bias, scale]
for parameter in parameters:
    parameter.grad = torch.ones_like(parameter)
gradients = [parameter.grad for parameter in parameters]


def sgd(parameters, **options):
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **options)
    optimizer.step()  # the first one makes the momentum
    return optimizer.step


CASES = {
    "matmul": [lambda: computed @ weight, lambda: torch.bmm(computed, weight)],
    "matmul_batch": [lambda: batch @ weight, lambda: torch.bmm(batch, weight)],
    "linear": [lambda: F.linear(computed, flat, bias)],
    "baddbmm": [lambda: torch.baddbmm(each, computed, weight)],
    "baddbmm_batch": [lambda: torch.baddbmm(each, batch, weight)],
    "add_parameter": [lambda: computed + bias, lambda: computed + each],
    "mul_parameter": [lambda: computed * scale, lambda: computed * each],
    "add_batch": [lambda: computed + batch],
    "sub_batch": [lambda: computed - batch],
    "mul_batch": [lambda: computed * batch],
    "div_batch": [lambda: computed / batch],
    "residual": [lambda: computed + computed.view_as(computed)],
    "embedding": [lambda: F.embedding(tokens, flat)],
    "layer_norm": [
        lambda: F.layer_norm(computed, (6,)),
        lambda: F.layer_norm(computed, (6,), scale, bias),
    ],
    "gelu": [lambda: F.gelu(computed)],
    "silu": [lambda: F.silu(computed)],
    "mul_sigmoid": [lambda: computed * torch.sigmoid(computed)],
    "square": [lambda: computed ** 2],
    "mean": [lambda: computed.mean(-1)],
    "sum": [lambda: computed.sum(-1)],
    "expand": [lambda: computed.unsqueeze(0).expand(2, 4, 8, 6)],
    "masked_fill": [
        lambda: computed.masked_fill(mask, 0.0),
        lambda: computed.masked_fill(mask, float("-inf")),
    ],
    "where": [lambda: torch.where(mask, computed, other)],
    "where_batch": [lambda: torch.where(mask, computed, batch)],
    "where_number": [lambda: torch.where(mask, computed, 0.0)],
    "maximum": [lambda: torch.maximum(computed, other)],
    "maximum_batch": [lambda: torch.maximum(computed, batch)],
    "mse_loss": [
        lambda: F.mse_loss(computed, batch, reduction="none"),
        lambda: F.mse_loss(computed, batch, reduction="sum"),
        lambda: F.mse_loss(computed, batch),
    ],
    "cross_entropy": [
        lambda: F.cross_entropy(rows, classes),
        lambda: F.cross_entropy(rows, classes, ignore_index=1),
    ],
    "stack": [lambda: torch.stack([computed, other])],
    "max": [lambda: batch.max()],
    "argmax": [lambda: batch.argmax(-1), lambda: computed.argmax(-1)],
    "eq": [lambda: batch == batch, lambda: classes == classes],
    "foreach_norm": [lambda: torch._foreach_norm(gradients)],
    "sgd": [sgd([weight], foreach=False)],
    "sgd_foreach": [sgd(parameters, foreach=True)],
    "sgd_fused": [sgd(parameters, fused=True)],
}
names = []
for name, cases in CASES.items():
    for call in cases:
        names.append(name)
        driver.step(0)
        result = call()
        driver.step(0)
        needs = isinstance(result, torch.Tensor) and result.requires_grad
        gradient = torch.ones_like(result) if needs else None
        driver.step(0)
        if needs:
            inputs = [computed, other, rows, *parameters]
            torch.autograd.grad(result, inputs, gradient, allow_unused=True)
names.append("backward")
driver.step(0)
loss = F.gelu(scalar)
driver.step(0)
driver.step(0)
loss.backward()
print(json.dumps(names))
"""


def test_an_operator_launches_what_the_virtual_gpu_counts(tmp_path):
    names, launches = count_launches(PROGRAM, tmp_path)
    measured = list(zip(names, launches[::3], launches[2::3], strict=True))
    *others, (_, _, backward) = measured
    assert others == [(name, *OPERATORS[name][:2]) for name, *_ in others]
    assert backward == OPERATORS["gelu"].backward + OPERATORS["backward"].backward
    assert {*names} == {*OPERATORS}


def test_the_rules_of_a_lab_have_the_same_launches():
    rules = (load_labs()["busy-ensemble"].path / "RULES.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \| (\d+) \|$", rules, re.MULTILINE)
    assert len(rows) > 10
    assert {name: (int(forward), int(backward)) for name, forward, backward in rows} == {
        name: OPERATORS[name][:2] for name, *_ in rows
    }
