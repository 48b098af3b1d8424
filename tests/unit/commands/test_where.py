"""`lab` alone, in a workspace."""

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from bottleneck_lab.catalog import find_lab
from bottleneck_lab.cli import app
from bottleneck_lab.grading.verdict import CriterionResult
from bottleneck_lab.workspace.folder import to_json
from bottleneck_lab.workspace.start import start_workspace

from ..report import made_up


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Function: leave a verdict in a workspace, and return what `lab` shows there."""
    monkeypatch.setenv("BOTTLENECK_LAB_HOME", str(tmp_path / "home"))
    workspace, _ = start_workspace(find_lab("resnet-top-ops"), tmp_path / "lab", "cpu")
    monkeypatch.chdir(workspace.root)

    def shown(verdict):
        workspace.attempts.mkdir(exist_ok=True)
        workspace.write(workspace.attempts / "0001.json", to_json(verdict))
        return CliRunner().invoke(app, []).output

    return shown


def test_a_wrong_answer_is_one_sentence(checked):
    sentence = "share: The capture shows 0.52. Read `lab report` again. Then correct it."
    wrong = replace(made_up.slow(), reason="wrong diagnosis", summary=sentence)
    assert "Check 1: FAIL. share: The capture shows 0.52.\n" in checked(wrong)


@pytest.mark.parametrize("value", [None, 2.5], ids=["yes", "a figure"])
def test_a_pass_repeats_a_criterion_only_for_its_figure(checked, value):
    result = CriterionResult("one", "target", True, "It is right.", value=value)
    verdict = replace(
        made_up.passed(), criteria=[result], summary=f"All 5 criteria are met. {result.sentence}"
    )
    shown = checked(verdict)
    assert "Check 1: PASS. All 5 criteria are met." in shown
    assert ("It is right." in shown) == (value is not None)
