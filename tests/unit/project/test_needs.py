"""The one sentence that says how to get what is missing, for the installer and the driver that are
here.
"""

from __future__ import annotations

import sys

import pytest

from bottleneck_lab import needs
from bottleneck_lab.errors import MachineError

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}.65.06  Release Build "
    " (dvs-builder)\nGCC version: gcc 12.2.0\n"
)
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC"
    " version:\n"
)


@pytest.mark.parametrize(
    ("receipt", "command"),
    [
        ("", "pip install 'bottleneck-lab[gpu]'"),
        ("uv-receipt.toml", "uv tool install 'bottleneck-lab[gpu]'"),
        ("pipx_metadata.json", "pipx install --force 'bottleneck-lab[gpu]'"),
    ],
)
def test_an_extra_is_installed_as_the_package_was(receipt, command, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    if receipt:
        (tmp_path / receipt).touch()
    assert needs.install_command("gpu") == command


@pytest.mark.parametrize("driver", [OPEN, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize(
    ("branch", "extra"), [(535, "dali-cuda12"), (575, "dali-cuda12"), (580, "dali"), (610, "dali")]
)
def test_the_driver_chooses_the_build_of_dali(driver, branch, extra, tmp_path, monkeypatch):
    version = tmp_path / "version"
    version.write_text(driver.format(branch))
    monkeypatch.setattr(needs, "_DRIVER", version)
    assert needs.dali_extra() == extra


@pytest.mark.parametrize(
    ("cuda", "extra"), [("'12.8'", "dali-cuda12"), ("'13.2'", "dali"), ("None", "dali")]
)
def test_without_a_driver_torch_does(cuda, extra, tmp_path, monkeypatch):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text(f"__version__ = '2.15.0'\ncuda: Optional[str] = {cuda}\n")
    monkeypatch.setattr(needs, "_DRIVER", tmp_path / "none")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert needs.dali_extra() == extra


def test_only_what_is_missing_is_named():
    needs.require_packages("labs", json="json")
    with pytest.raises(
        MachineError, match=r"Not installed for this Python: Nothing Such\."
    ) as caught:
        needs.require_packages("labs", json="json", no_such_module="Nothing Such")
    assert "bottleneck-lab[labs]" in caught.value.remedy
