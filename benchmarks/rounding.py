"""Measure whether rounding stays rounding in the labs of the kind `training`: the shipped script
trains twice, once with every weight changed by about 1e-7 of itself.

    python benchmarks/rounding.py [--lab stuttering-tagger …] [--trainings 40]
        [--edit 'gelu(self' 'torch.relu(self']

Prints how far apart the parameters end, as a share of each one's norm: the median and the largest
over trainings with different seeds, and how many end further apart than a check allows. --edit
replaces a word in recipe.py, to see what another choice would do.
"""

import argparse
import sys
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
from torch import nn

from bottleneck_lab.catalog import Lab, load_labs
from bottleneck_lab.measure.kinds.registry import kind_of

CHANGE = 1e-7


def load(lab: Lab, name: str, edit: tuple[str, str]) -> Any:
    """A module of the lab, its text edited."""
    module = sys.modules[name] = ModuleType(name)
    text = (lab.path / f"{name}.py").read_text(encoding="utf-8").replace(*edit)
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return module


def train(lab: Lab, edit: tuple[str, str], seed: int, change: float) -> dict[str, torch.Tensor]:
    """The parameters at the end of a training on the CPU that begins with every weight changed by
    about this share.
    """
    recipe, script = load(lab, "recipe", edit), load(lab, Path(lab.spec.entry).stem, ("", ""))
    model = next(
        value
        for value in vars(script).values()
        if isinstance(value, type) and issubclass(value, nn.Module)
    )
    make, noise = model.__init__, torch.Generator().manual_seed(seed)

    def changed(self: nn.Module) -> None:
        make(self)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(1 + change * torch.randn(parameter.shape, generator=noise))

    model.__init__ = changed
    torch.manual_seed(seed)
    trained = script.train(torch.device("cpu"), recipe.Data(seed), lambda *_, **__: None)
    return {name: parameter.detach() for name, parameter in trained.named_parameters()}


def apart(lab: Lab, edit: tuple[str, str], seed: int) -> float:
    """The largest distance of a parameter between both trainings, as a share of its norm."""
    plain, changed = (train(lab, edit, seed, change) for change in (0.0, CHANGE))
    return max(float((plain[name] - changed[name]).norm() / plain[name].norm()) for name in plain)


def main() -> None:
    labs = {slug: lab for slug, lab in load_labs().items() if lab.spec.measure == "training"}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab", nargs="+", choices=labs, default=list(labs), metavar="LAB")
    parser.add_argument("--trainings", type=int, default=40)
    parser.add_argument("--edit", nargs=2, default=("", ""), metavar=("OLD", "NEW"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for slug in options.lab:
        allowed = kind_of(labs[slug]).settings(labs[slug], "virtual").tolerance
        differences = [apart(labs[slug], options.edit, seed) for seed in range(options.trainings)]
        beyond = sum(one > allowed for one in differences)
        print(
            f"{slug}: median {median(differences):.1e}, largest {max(differences):.1e}; {beyond} of"
            f" {len(differences)} beyond {allowed:g}"
        )


if __name__ == "__main__":
    main()
