"""Ranks train whatever model a lab brings, on samples of any shape."""

import io
import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from bottleneck_lab.measure.kinds.data_parallel.fabric import table_rules
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable, ModuleCost, StandIn
from bottleneck_lab.measure.kinds.data_parallel.fabric.server import FabricServer
from bottleneck_lab.measure.kinds.data_parallel.in_rank.client import Client
from bottleneck_lab.measure.kinds.data_parallel.protocol import BATCH
from bottleneck_lab.measure.kinds.data_parallel.session import Secret

EXAMPLE = Path(__file__).parents[3] / "docs" / "example-data-parallel" / "labs" / "pump-fleet"


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
