"""Launches of operators on the emulated device, for code that has yet to be written."""

from __future__ import annotations

from typing import NamedTuple

from bottleneck_lab.errors import UsageError
from bottleneck_lab.wording import counted


class Launches(NamedTuple):
    """An operator's launches forward and backward, and what is meant by its name."""

    forward: int
    backward: int
    meaning: str

    def describe(self, name: str, times: int) -> str:
        """Return the launches of so many calls in words."""
        # What has no backward, such as an optimizer, has no forward to tell it from.
        sides = [f"{counted(times * self.forward, 'launch', 'launches')}"] * bool(self.forward)
        if self.forward and self.backward:
            sides = [f"{sides[0]} forward", f"{times * self.backward:,} backward"]
        elif self.backward:
            sides = [f"{counted(times * self.backward, 'launch', 'launches')} backward"]
        return f"{times:,} × {name}: {', '.join(sides)}"


OPERATORS = {
    "matmul": Launches(1, 2, "product of what was computed before and a parameter"),
    "matmul_batch": Launches(1, 1, "product of a batch's tensor and a parameter"),
    "linear": Launches(1, 3, "`matmul` with the bias in one call, as in `nn.Linear`"),
    "baddbmm": Launches(1, 3, "of a bias, what was computed before and a parameter"),
    "baddbmm_batch": Launches(1, 2, "of a bias, a batch's tensor and a parameter"),
    "add_parameter": Launches(1, 1, "adding a bias that is the same for every sample"),
    "mul_parameter": Launches(1, 3, "multiplying by a parameter that is the same for every sample"),
    "add_batch": Launches(1, 0, "adding a batch's tensor"),
    "sub_batch": Launches(1, 0, "subtracting a batch's tensor, or from it"),
    "mul_batch": Launches(1, 1, "multiplying by a batch's tensor"),
    "div_batch": Launches(1, 1, "dividing by a batch's tensor"),
    "residual": Launches(1, 1, "`x + f(x)`, besides `f`"),
    "embedding": Launches(1, 1, "rows of a parameter, `F.embedding`"),
    "layer_norm": Launches(1, 1, "with or without weight and bias"),
    "gelu": Launches(1, 1, "`F.gelu`"),
    "silu": Launches(1, 1, "`F.silu`"),
    "mul_sigmoid": Launches(2, 4, "`x * torch.sigmoid(x)`"),
    "square": Launches(1, 3, "`x ** 2`"),
    "mean": Launches(1, 1, "`x.mean(-1)`"),
    "sum": Launches(1, 0, "`x.sum(-1)`"),
    "expand": Launches(0, 1, "`x.expand(…)`"),
    "masked_fill": Launches(1, 1, "`x.masked_fill(mask, 0.0)`"),
    "where": Launches(1, 4, "`torch.where(mask, x, y)` of two that were computed before"),
    "where_batch": Launches(1, 2, "the same of one of these and a batch's tensor"),
    "where_number": Launches(2, 2, "the same of one of these and a number"),
    "maximum": Launches(1, 10, "`torch.maximum(x, y)` of two that were computed before"),
    "maximum_batch": Launches(1, 5, "the same of one of these and a batch's tensor"),
    "mse_loss": Launches(1, 1, "with any `reduction`"),
    "cross_entropy": Launches(2, 2, "with or without `ignore_index`"),
    "backward": Launches(0, 1, "`loss.backward()`, besides what it goes through"),
    "stack": Launches(1, 0, "`torch.stack`"),
    "max": Launches(1, 0, "`x.max()` of what needs no gradient"),
    "argmax": Launches(1, 0, "`x.argmax(-1)`"),
    "eq": Launches(1, 0, "`x == y`"),
    "foreach_norm": Launches(1, 0, "`torch._foreach_norm` of all gradients"),
    "sgd": Launches(3, 0, "SGD with momentum, for each parameter"),
    "sgd_foreach": Launches(3, 0, "the same for all parameters, `foreach=True`"),
    "sgd_fused": Launches(1, 0, "the same for all parameters, `fused=True`"),
}
"""Measured on the emulated device, as a test does again. The backward is that of operators of which
every input that may need a gradient does; of what is the `_batch`'s, none does."""


def find_operator(name: str) -> str:
    """Return the name here of what may be called `F.layer_norm` or `nn.LayerNorm`. Raises
    UsageError, with all names, for one that is not here.
    """
    wanted = _plain(name.rpartition(".")[2])
    for each in OPERATORS:
        if _plain(each) == wanted:
            return each
    raise UsageError(
        f"What '{name}' launches is not known.",
        "\n".join(
            ["Give a number of launches, or one of these (forward + backward):", *list_operators()]
        ),
    )


def list_operators() -> list[str]:
    """Return a row for each operator: its name, its launches and what is meant by it."""
    width = max(map(len, OPERATORS))
    return [
        f"  {each:{width}}  {launches.forward} + {launches.backward:<2}  {launches.meaning}"
        for each, launches in OPERATORS.items()
    ]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
