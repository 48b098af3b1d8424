"""The rules for a lab's cost table: it must be one of the model that its recipe makes."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from typing import Any

from bottleneck_lab.catalog import Lab
from bottleneck_lab.errors import LabError
from bottleneck_lab.measure.kinds.data_parallel.fabric.costs import CostTable, load_costs


def problems(lab: Lab) -> Iterator[str]:
    """Yield a sentence for everything that is wrong with a lab's costs.json; a missing file is
    reported elsewhere.
    """
    file, recipe = lab.path / "costs.json", lab.path / "recipe.py"
    if not (file.is_file() and recipe.is_file()):
        return
    try:
        costs = load_costs(lab.path)
    except LabError as error:
        yield error.message
        return
    if "cuda" in lab.spec.devices and not costs.shape:
        yield f"{file}: `shape`, of a real sample, is needed on cuda."
    made = runpy.run_path(str(recipe))
    yield from (f"{file}: {problem}" for problem in _of_another_model(costs, made["make_model"]()))
    if ("make_small_model" in made) != (costs.small is not None):
        yield f"{file}: `small` belongs to the recipe's `make_small_model`: have both, or neither."
    elif costs.small is not None:
        small = made["make_small_model"]()
        problems = _of_another_model(costs.of_small_model(), small)
        yield from (f"{file}: `small`: {problem}" for problem in problems)
    if _mixes_micro_batches(
        costs.of_small_model(), made.get("make_small_model", made["make_model"])()
    ):
        yield (
            f"{recipe}: a micro-batch's outputs must depend neither on chance nor on what else is"
            " in a pass. Only batch norms may take samples together."
        )


def _mixes_micro_batches(costs: CostTable, model: Any) -> bool:
    """Return True if two micro-batches in one pass give other outputs than each in its own."""
    import torch

    from bottleneck_lab.measure.kinds.data_parallel.in_rank.as_one import normalise_apart

    outputs: list[Any] = []
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_hook(lambda *given: outputs.append(given[2]))
    shape = (2, costs.stand_in.samples, *costs.stand_in.shape)
    samples = torch.randint(costs.tokens, shape) if costs.tokens else torch.randn(shape)
    with torch.no_grad():
        for one in samples:
            model(one)
        normalise_apart(model, 2)
        model(samples.flatten(0, 1))
    passes = len(outputs) // 3
    first, second, both = outputs[:passes], outputs[passes:-passes], outputs[-passes:]
    return not all(
        torch.allclose(torch.cat(apart), together, rtol=0, atol=1e-3 * float(together.abs().max()))
        for *apart, together in zip(first, second, both, strict=True)
    )


def _of_another_model(costs: CostTable, model: Any) -> Iterator[str]:
    own = {name: list(module.parameters(recurse=False)) for name, module in model.named_modules()}
    wanted = [(name, sum(part.numel() for part in parts)) for name, parts in own.items() if parts]
    listed = [(module.name, module.elements) for module in costs.modules]
    if listed != wanted:
        odd = next((pair for pair in wanted if pair not in listed), None)
        lacking = f": `{odd[0]}`, of {odd[1]} elements, is not in it" if odd else ""
        yield (
            "`modules` are not those of the recipe's model that have parameters, in the order of"
            f" `named_modules()`{lacking}."
        )
    smallest = min(part.numel() for parts in own.values() for part in parts)
    if costs.smallest > smallest:
        yield (
            f"a parameter of the model has {smallest} elements, and `smallest` is {costs.smallest}."
        )
