"""What the hosting site, containers and the package index read: well-formed, and in step with each
other.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from trove_classifiers import classifiers

from bottleneck_lab.needs import DALI_BUILDS

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_least_permissions_and_an_end(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        if "uses" in job:  # another workflow, which is looked at by itself
            assert (ROOT / job["uses"]).is_file()
            continue
        assert job["timeout-minutes"] <= 60, name
        assert all("uses" in step or "run" in step for step in job["steps"])


def test_a_release_is_what_was_tested():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    assert jobs["publish"]["needs"] == "test"
    assert jobs["release"]["permissions"] == {"contents": "write"}
    # Nothing is built after the tests: the wheel that they installed is the one that is published.
    assert not re.search(r"-m build", (ROOT / ".github" / "workflows" / "release.yml").read_text())


def test_ci_tries_the_newest_python_and_the_lowest_versions():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    newest = max(
        (name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: 3." in name),
        key=lambda version: int(version.partition(".")[2]),
    )
    assert newest in jobs["tests"]["strategy"]["matrix"]["python"]
    assert any("make floors" in step.get("run", "") for step in jobs["floors"]["steps"])
    assert "dali" not in "".join(PROJECT["optional-dependencies"]["test"])


def test_workflows_type_what_the_makefile_knows():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {
        target for path in WORKFLOWS for target in re.findall(r"run: make (\w+)", path.read_text())
    }
    assert asked
    assert asked <= targets


def test_the_tests_run_on_three_pythons_that_the_package_supports():
    tested = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"][
        "tests"
    ]["strategy"]["matrix"]["python"]
    claimed = {
        name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)
    }
    assert len(tested) >= 3
    assert set(tested) <= claimed


def test_publishing_is_trusted_and_holds_no_token():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert yaml.safe_load(text)["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in text


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name
)
def test_an_issue_template_is_one(path):
    template = yaml.safe_load(path.read_text())
    if path.name != "config.yml":
        assert {"name", "description", "body"} <= set(template)
        assert all(part["type"] == "markdown" or part["id"] for part in template["body"])


def test_one_version_everywhere():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == PROJECT["version"]
    assert f"\n## {PROJECT['version']}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_classifiers_are_known_to_the_index():
    assert set(PROJECT["classifiers"]) <= set(classifiers)


def test_all_is_every_extra_of_a_user():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    own = set(everything.partition("[")[2].rstrip("]").split(","))
    alternatives = {"dali-cuda12", "ray"}  # another build of DALI, another engine below a cohort
    assert own == set(extras) - {"all", "dev", "test", "docs"} - alternatives
    for extra, distribution in DALI_BUILDS.items():
        assert extras[extra][0].startswith(distribution)


def test_the_install_page_names_every_extra():
    page = (ROOT / "docs" / "install.md").read_text()
    for extra in set(PROJECT["optional-dependencies"]) - {"dev", "test", "docs"}:
        assert f"| `{extra}` |" in page


def test_the_containers_bring_the_sandbox_and_no_root():
    stages = (ROOT / "Dockerfile").read_text().split("\nFROM ")[1:]
    assert len(stages) == 3
    base, *targets = stages
    for stage in targets:
        assert "bubblewrap" in (base if stage.startswith("base ") else stage)
        assert re.search(r"^USER learner$", stage, re.MULTILINE)
    for line in re.findall(r"apt-get install[^&]*", (ROOT / "Dockerfile").read_text()):
        assert "--no-install-recommends" in line
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["build"]["target"] in re.findall(
        r" AS (\w+)", (ROOT / "Dockerfile").read_text()
    )
