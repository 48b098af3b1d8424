"""What the hosting site, containers and the package index read: well-formed, and in step with each
other.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
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
        target
        for path in WORKFLOWS
        for line in re.findall(r"run: make (.+)", path.read_text())
        for target in re.findall(r"(?<!\S)[a-z]+(?!\S)", line)
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


def test_fresh_can_carry_out_every_step_of_the_image():
    """scripts/fresh.sh turns these instructions, and no others, into a shell script."""
    text = (ROOT / "Dockerfile").read_text()
    instructions = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    assert {name for name, _ in instructions} <= {
        "FROM",
        "ENV",
        "RUN",
        "COPY",
        "USER",
        "WORKDIR",
        "CMD",
    }
    assert all(rest == "<<STEP" for name, rest in instructions if name == "RUN")
    assert [name for name, _ in instructions][-3:] == ["USER", "WORKDIR", "CMD"]
    assert re.search(r"^FROM debian:[a-z]+-slim AS base$", text, re.MULTILINE)
    assert re.search(r"^FROM base AS lab$", text, re.MULTILINE)


def test_the_container_brings_the_sandbox_and_no_root():
    text = (ROOT / "Dockerfile").read_text()
    (packages,) = re.findall(r"apt-get install -y --no-install-recommends (.*)", text)
    assert {"bubblewrap", "g++"} <= set(packages.split())
    assert re.search(r"^USER learner$", text, re.MULTILINE)
    # A login shell would set another PATH, without the lab.
    assert text.endswith('CMD ["bash"]\n')
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["build"]["target"] == "base"
    assert container["remoteUser"] == "learner"


def test_the_toolkits_release_is_one_that_pytorch_pins():
    """With a newer one, pip falls back to the last PyTorch that pins no toolkit."""
    pinned = importlib.metadata.requires("torch")
    (nvcc,) = PROJECT["optional-dependencies"]["nvcc"]
    for requirement in pinned or []:
        if match := re.match(r"cuda-toolkit\[.*\]==([\d.]+)", requirement):
            assert Requirement(nvcc).specifier.contains(match[1])
