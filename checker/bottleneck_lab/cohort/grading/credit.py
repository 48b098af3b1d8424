"""The share of a lab's points that work earns which does not pass: pure functions.

Credit begins where work beats the shipped code. What that meets, too, earns nothing: every
criterion of a graver kind than the one by which the lab declares it to fail.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from bottleneck_lab.catalog import CriterionKind, Lab
from bottleneck_lab.cohort.settings import Weights
from bottleneck_lab.cohort.view.verdicts import CheckedVerdict
from bottleneck_lab.grading.conclusion import REASONS
from bottleneck_lab.grading.verdict import CriterionResult, Outcome

GRADED = ("correct but slow", "the mechanism is still there", "wrong diagnosis")
"""Reasons of a FAIL that leave something to earn: work that is wrong or was stopped has nothing."""


class Part(msgspec.Struct, frozen=True):
    """A criterion's part in partial credit: of its `weight` the `share` (0–1) is earned.

    The weight is 0 for what the shipped code meets too.
    """

    criterion: CriterionResult
    weight: float
    share: float


class Basis(msgspec.Struct, frozen=True):
    """The facts about a lab that credit rests on.

    `fails_by` is the kind of criterion by which its shipped code fails. `scales` are the shipped
    code's figure and the target, by device and criterion, where the lab knows both.
    """

    fails_by: CriterionKind
    scales: dict[str, dict[str, tuple[float, float]]]


def basis_of(lab: Lab) -> Basis:
    """Return the facts about a lab that credit rests on."""
    fails_by = next(
        (k for k in REASONS if REASONS[k] == lab.spec.starter_fails), next(iter(REASONS))
    )
    return Basis(
        fails_by,
        {
            device: {
                one.id: (one.shipped, one.target)
                for one in spec.criteria
                if one.shipped is not None and one.target is not None
            }
            for device, spec in lab.spec.devices.items()
        },
    )


def split(lab: Lab, weights: Weights) -> dict[str, float]:
    """Return the share (0–1) of a lab's points that each kind of criterion can earn in part.

    Counted on the first device of the lab; empty if nothing that it asks has a weight.
    """
    kinds = list(REASONS)  # gravest first
    begins = kinds.index(basis_of(lab).fails_by)
    device = next(iter(lab.spec.devices.values()))
    # A prediction of the gain is compared, not graded.
    answers = ["diagnosis" for question in lab.spec.questions if not question.predicts_gain]
    counts = Counter([*(one.kind for one in device.criteria), *answers])
    amounts = {
        kind: getattr(weights, kind) * counts[kind] for kind in kinds[begins:] if counts[kind]
    }
    whole = sum(amounts.values())
    return {kind: amount / whole for kind, amount in amounts.items()} if whole else {}


def parts(judged: CheckedVerdict, basis: Basis, weights: Weights) -> list[Part]:
    """Return what each criterion of a verdict adds to partial credit, in the verdict's order."""
    kinds = list(REASONS)  # gravest first
    begins = kinds.index(basis.fails_by)
    scales = basis.scales.get(judged.device, {})
    listed = []
    for one in judged.criteria:
        weight: float = getattr(weights, one.kind)
        if kinds.index(one.kind) >= begins:
            listed.append(Part(one, weight, _share(one, scales.get(one.id))))
        else:
            # What the shipped code meets earns nothing, but costs its part if it is lost.
            listed.append(Part(one, weight if one.holds is False else 0.0, 0.0))
    return listed


def credit(judged: CheckedVerdict, basis: Basis, weights: Weights) -> float:
    """Return the share (0–1) of the points that a verdict earns.

    1 only for a lab that is solved without an answer that was corrected; 0 for the reference's
    code, and for code that is in nothing better than the shipped one.
    """
    corrected = any(one.corrected is True for one in judged.criteria)
    if judged.passed and not corrected:
        return 1.0
    if judged.copied or not _earns(judged):
        return 0.0
    listed = parts(judged, basis, weights)
    whole = sum(part.weight for part in listed)
    if not whole:  # no weight is left for anything that this lab asks
        return float(judged.passed)
    if not weights.answers_alone and _only_answers(listed, basis):
        return 0.0
    return sum(part.weight * part.share for part in listed) / whole


def only_answers(judged: CheckedVerdict, basis: Basis, weights: Weights) -> bool:
    """Return True for work that has nothing to be credited for but right answers.

    They are no work yet, unless they are all that a lab asks for.
    """
    listed = parts(judged, basis, weights)
    earning = any(part.weight * part.share for part in listed)
    return earning and _earns(judged) and _only_answers(listed, basis)


def _only_answers(listed: list[Part], basis: Basis) -> bool:
    better = any(part.share and part.criterion.kind != "diagnosis" for part in listed)
    return basis.fails_by != "diagnosis" and not better


def _earns(judged: CheckedVerdict) -> bool:
    """Return True for work that is right, as far as it was measured, and was not stopped."""
    if judged.outcome is Outcome.FAIL:
        return judged.reason in GRADED
    # Work that is undecided is no worse than work that fails by something else besides.
    right = all(one.holds for one in judged.criteria if one.kind == "correctness")
    return judged.passed or (judged.outcome is Outcome.INCONCLUSIVE and right)


def _share(result: CriterionResult, scale: tuple[float, float] | None) -> float:
    """Return the share (0–1) of a criterion that is met.

    It grows from the shipped code's figure to the target, if the lab knows that figure. An answer
    that was corrected once reports showed the tool's figures meets nothing.
    """
    if result.holds:
        return 0.0 if result.corrected is True else 1.0
    sure = result.value if result.low is None else result.low
    if scale is None or sure is None:
        return 0.0
    shipped, target = scale
    return min(max((sure - shipped) / (target - shipped), 0.0), 1.0)
