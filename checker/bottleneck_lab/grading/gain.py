"""One figure for the gain, which a check measures as a criterion and as what was predicted."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from bottleneck_lab.catalog import CriterionSpec
from bottleneck_lab.grading.criteria import format_figure, format_range
from bottleneck_lab.grading.verdict import CriterionResult, Verdict

_IMPOSSIBLE = re.compile(r"^The [\d.]+x are not the gain of your fix: none can gain more than")
_DOUBTED = re.compile(r"(?<=against )(the second|\d+) the result would be different")


def with_one_gain(verdict: Verdict, specs: Sequence[CriterionSpec]) -> Verdict:
    """Return a verdict with one figure for the gain over the shipped code, where a criterion of the
    lab, among `specs`, is about that.

    The prediction is held against the criterion's figure. What other programs took from a shipped
    server counts against the gain: one that is larger than any fix can gain is given against the
    rate that the server might have alone, and one that is in doubt reaches down to that.
    """
    ids = [each.id for each in specs if each.shipped == 1]
    gain = next((each for each in verdict.criteria if each.id in ids), None)
    if gain is None or gain.value is None:
        return verdict
    notes = [_IMPOSSIBLE.sub("No fix can gain more than", note) for note in verdict.notes]
    impossible = notes != verdict.notes
    verdict = msgspec.structs.replace(verdict, notes=notes)
    if gain.holds is None:
        return _with_doubt(verdict, gain)
    if impossible:
        return _against_alone(verdict, gain)
    predicted = verdict.prediction
    if predicted is None or predicted.measured is None or predicted.quantity != "time":
        return verdict
    predicted = msgspec.structs.replace(predicted, measured=gain.value)
    return msgspec.structs.replace(verdict, prediction=predicted)


def _against_alone(verdict: Verdict, gain: CriterionResult) -> Verdict:
    """Return a verdict whose gain is given against the shipped server's rate with nothing else
    running.
    """
    alone = verdict.measurement["shipped_alone"][0]
    value, low, high = (
        None if each is None else _against(each, alone, verdict)
        for each in (gain.value, gain.low, gain.high)
    )
    figure = format_figure(value or 0.0, gain.unit, gain.target)
    counted = f"at least {figure}, against the {alone:.0f}/s that it might answer alone"
    sentence = f"{gain.sentence.rpartition(': ')[0]}: {counted}."
    bounded = msgspec.structs.replace(
        gain, value=value, low=low, high=high, counted=counted, sentence=sentence
    )
    return _with_gain(verdict, gain, bounded)


def _with_doubt(verdict: Verdict, gain: CriterionResult) -> Verdict:
    """Return a verdict whose undecided gain says what it would be against the rate that puts it in
    doubt, if one does, and whose bounds hold that, too.
    """
    doubt = _DOUBTED.search(gain.sentence)
    if doubt is None or gain.low is None or gain.high is None:
        return verdict
    if doubt[1] == "the second":
        base = verdict.measurement["shipped_rates"][1]
    else:  # the sentence gives the rate in whole requests/s
        alone = verdict.measurement["shipped_alone"]
        base = min(alone, key=lambda rate: abs(rate - float(doubt[1])))
    low, high = _against(gain.low, base, verdict), _against(gain.high, base, verdict)
    bounds = format_range(low, high, gain.unit, gain.target)
    bounded = msgspec.structs.replace(
        gain,
        low=min(low, gain.low),
        high=max(high, gain.high),
        sentence=_DOUBTED.sub(rf"\1 it would be {bounds}", gain.sentence),
    )
    return _with_gain(verdict, gain, bounded)


def _against(gain: float, base: float, verdict: Verdict) -> float:
    """Return a gain over the shipped server's first rate as one over the rate `base`."""
    first: float = verdict.measurement["shipped_rates"][0]
    return gain * first / base


def _with_gain(verdict: Verdict, old: CriterionResult, new: CriterionResult) -> Verdict:
    """Return the verdict with a criterion's result replaced, in its summary as well."""
    return msgspec.structs.replace(
        verdict,
        criteria=[new if each is old else each for each in verdict.criteria],
        summary=verdict.summary.replace(old.sentence, new.sentence),
    )
