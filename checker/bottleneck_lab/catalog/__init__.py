"""The labs as data: what authors declare, where content is, and the labs by their names."""

from bottleneck_lab.catalog.content import (
    PACKS,
    content_root,
    content_roots,
    files_below,
    find_dataset,
    hash_files,
)
from bottleneck_lab.catalog.labs import (
    Lab,
    criterion_label,
    current_name,
    find_lab,
    load_course,
    load_labs,
    recorded_lab,
)
from bottleneck_lab.catalog.spec import (
    CourseSpec,
    CriterionKind,
    CriterionSpec,
    Device,
    DeviceSpec,
    FailReason,
    HintSpec,
    LabSpec,
    QuestionSpec,
    TextSpec,
)

__all__ = [
    "PACKS",
    "CourseSpec",
    "CriterionKind",
    "CriterionSpec",
    "Device",
    "DeviceSpec",
    "FailReason",
    "HintSpec",
    "Lab",
    "LabSpec",
    "QuestionSpec",
    "TextSpec",
    "content_root",
    "content_roots",
    "criterion_label",
    "current_name",
    "files_below",
    "find_dataset",
    "find_lab",
    "hash_files",
    "load_course",
    "load_labs",
    "recorded_lab",
]
