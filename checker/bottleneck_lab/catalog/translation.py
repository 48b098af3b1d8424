"""A lab's texts in the language that learners read."""

from __future__ import annotations

import os
import re

import msgspec

from bottleneck_lab.catalog.spec import LabSpec, QuestionText, TextSpec


def translate(spec: LabSpec, text: TextSpec) -> LabSpec:
    """Return the lab with the words of another language; what `text` leaves out stays."""
    replace = msgspec.structs.replace
    hints = spec.hints
    if text.hints:
        hints = [replace(hint, text=words) for hint, words in zip(hints, text.hints, strict=True)]
    questions = []
    for question in spec.questions:
        words = text.questions.get(question.id, QuestionText())
        ask, measure = words.ask or question.ask, words.measure or question.measure
        questions.append(replace(question, ask=ask, measure=measure))
    devices = {}
    for name, device in spec.devices.items():
        criteria = [
            replace(criterion, text=text.criteria.get(criterion.id, criterion.text))
            for criterion in device.criteria
        ]
        devices[name] = replace(device, criteria=criteria)
    return replace(
        spec,
        title=text.title or spec.title,
        symptom=text.symptom or spec.symptom,
        hints=hints,
        questions=questions,
        devices=devices,
    )


def language() -> str:
    """Return the language that learners read, as in `README.de.md`: `BOTTLENECK_LAB_LANGUAGE`.

    Empty for the originals' language, and for a value that is no language code: the value becomes
    part of a file name.
    """
    wanted = os.environ.get("BOTTLENECK_LAB_LANGUAGE", "")
    return wanted if re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?", wanted) else ""
