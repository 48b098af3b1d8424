"""Ranks train whatever model a lab brings, on samples of any shape."""

import io
import json
import runpy
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from bottleneck_lab.errors import LabError
from bottleneck_lab.measure.kinds.data_parallel.fabric import table_rules
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import (
    CostTable,
    ModuleCost,
    StandIn,
    load_costs,
)
from bottleneck_lab.measure.kinds.data_parallel.fabric.server import FabricServer
from bottleneck_lab.measure.kinds.data_parallel.in_rank.as_one import normalise_apart
from bottleneck_lab.measure.kinds.data_parallel.in_rank.client import Client
from bottleneck_lab.measure.kinds.data_parallel.protocol import BATCH
from bottleneck_lab.measure.kinds.data_parallel.session import Secret

ROOT = Path(__file__).parents[3]
LAB = ROOT / "labs" / "ddp-scaling"
EXAMPLE = ROOT / "docs" / "example-data-parallel" / "labs" / "pump-fleet"


def test_a_cost_table_of_another_model_is_told(tmp_path):
    folder = shutil.copytree(EXAMPLE, tmp_path / "lab")
    lab = SimpleNamespace(path=folder, spec=SimpleNamespace(devices={"virtual": None}))
    assert list(table_rules.problems(lab)) == []
    table = json.loads((folder / "costs.json").read_text())
    table["modules"][2]["elements"] -= 1
    table["smallest"] = 1000
    (folder / "costs.json").write_text(json.dumps(table))
    lab.spec.devices["cuda"] = None
    shape, modules, smallest = table_rules.problems(lab)
    assert shape.endswith("`shape`, of a real sample, is needed on cuda.")
    assert "`4`, of 410240 elements, is not in it" in modules
    assert smallest.endswith("has 64 elements, and `smallest` is 1000.")


def test_the_shipped_script_s_throughput_is_that_of_a_check_s_ranks(tmp_path):
    table = json.loads((EXAMPLE / "costs.json").read_text())
    table["shipped_samples_per_s"] = {"2": 100.0, "8": 300.0}
    (tmp_path / "costs.json").write_text(json.dumps(table))
    with pytest.raises(LabError, match="on 4 and on 8 ranks, and no other"):
        load_costs(tmp_path)


@pytest.mark.parametrize(("tokens", "dtype"), [(0, np.float32), (50, np.int64)])
def test_samples_have_the_lab_s_shape_and_reach_a_rank_as_they_were_drawn(tokens, dtype):
    modules = [ModuleCost("a", 100_000, 1, 2)]
    costs = CostTable("test", "made up", 5.0, 2, 10, 10, StandIn(3, (5, 2)), modules, tokens=tokens)
    samples, labels = Secret(1, 7).batch(costs, 0, 0)
    assert (samples.shape, labels.shape, samples.dtype) == ((2, 3, 5, 2), (2, 3), dtype)
    assert len(np.unique(samples)) > 20
    link, rank = Mock(ledger=Mock(fetched=0)), Mock()
    FabricServer._hand_out(Mock(batches=lambda *_: (samples, labels)), 0, link)
    sent = io.BytesIO(link.send.call_args.args[0] + BATCH.pack(0, 0))
    rank.read, rank.handed_out = sent.read, []
    rank._array = partial(Client._array, rank)
    (micro_batches,) = Client.batches(rank)
    assert all(
        np.array_equal(got, want) for (got, _), want in zip(micro_batches, samples, strict=True)
    )
    assert all(
        np.array_equal(got, want) for (_, got), want in zip(micro_batches, labels, strict=True)
    )
    assert [Client.micro_batch(rank, got.double()) for got, _ in reversed(micro_batches)] == [1, 0]


MIXED = """

def make_small_model():
    model = make_model(width=64)
    model.insert(2, {layer})
    return model
"""


@pytest.mark.parametrize(
    ("layer", "fits"),
    [
        ("nn.BatchNorm1d(64, affine=False)", True),
        ("nn.Dropout()", False),
        ("nn.Softmax(dim=0)", False),
    ],
)
def test_micro_batches_must_go_through_a_lab_s_model_apart(layer, fits, tmp_path):
    folder = shutil.copytree(EXAMPLE, tmp_path / "lab")
    (folder / "recipe.py").write_text(
        (folder / "recipe.py").read_text() + MIXED.format(layer=layer)
    )
    lab = SimpleNamespace(path=folder, spec=SimpleNamespace(devices={"virtual": None}))
    mixed = [problem for problem in table_rules.problems(lab) if "batch norms" in problem]
    assert len(mixed) == (not fits)


def test_all_micro_batches_as_one_have_the_mean_of_their_gradients():
    import torch
    from torch.nn.functional import cross_entropy

    from bottleneck_lab.measure.kinds.data_parallel.child import open_gates

    costs, ranks, secret = load_costs(LAB).of_small_model(), 2, Secret(1, 7)
    micro_batches = ranks * costs.micro_batches
    model = runpy.run_path(str(LAB / "recipe.py"))["make_small_model"]().double()
    open_gates(model)
    parameters = list(model.parameters())

    def gradient(samples, labels):
        loss = cross_entropy(model(torch.tensor(samples).double()), torch.tensor(labels))
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, parameters)])

    apart = [
        gradient(*micro_batch)
        for rank in range(ranks)
        for micro_batch in zip(*secret.batch(costs, 0, rank), strict=True)
    ]
    (samples,), (labels,) = secret.batch_as_one(costs, ranks, 0, 0)
    assert (len(apart), len(samples)) == (micro_batches, micro_batches * costs.stand_in.samples)
    normalise_apart(model, micro_batches)
    torch.testing.assert_close(gradient(samples, labels), sum(apart) / micro_batches)
    assert secret.batch_as_one(costs, ranks, 1, 0) is None


@pytest.mark.parametrize(
    ("lab", "make"),
    [(LAB, "make_small_model"), (EXAMPLE, "make_model")],
    ids=["ddp-scaling", "pump-fleet"],
)
def test_rounding_makes_no_gradient_of_a_lab_s_model_jump(lab, make):
    """As with ReLU. Right work that adds up in another order would end far from the reference."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(1)  # more would wait for each other on a busy machine
    costs, noise = load_costs(lab), torch.Generator().manual_seed(0)
    stand_in = (costs.of_small_model() if "small" in make else costs).stand_in
    model = runpy.run_path(str(lab / "recipe.py"))[make]().double()
    parameters = list(model.parameters())
    with torch.no_grad():
        for parameter in parameters:
            if not parameter.any():  # nothing would pass through, as in the check's `open_gates`
                parameter.fill_(0.1)
    # Along a line, steps of a smooth function are alike: what differs between two of them is small.
    bends = []
    for _ in range(16):
        samples = torch.randn(
            stand_in.samples, *stand_in.shape, generator=noise, dtype=torch.float64
        )
        labels = torch.randint(costs.classes, (stand_in.samples,), generator=noise)
        gradients = []
        for _ in range(3):
            made = torch.autograd.grad(cross_entropy(model(samples), labels), parameters)
            gradients.append(torch.cat([one.flatten() for one in made]))
            torch.manual_seed(len(bends))  # the same way in all steps of a line
            with torch.no_grad():
                for parameter in parameters:
                    parameter.mul_(1 + 1e-5 * torch.randn_like(parameter))
        first, middle, last = gradients
        bends.append(float((last - 2 * middle + first).norm() / middle.norm()))
    # Less than 1e-6, and 4e-4 where a maximum over pixels goes to another; with ReLU, 3e-3.
    assert max(bends) < 1e-3
