"""The hook that loads a plugin into every process, and the names that the pretend GPU replaces."""

import os
import subprocess
import sys
from importlib import import_module

import pytest

from bottleneck_lab.capture import devices
from bottleneck_lab.measure.channel.session import CallSession
from bottleneck_lab.measure.gpu import cuda_devices
from bottleneck_lab.plugin import VARIABLE

from ...pretend import pretend_gpu

PACKAGE = import_module("pretend_gpu.replacements").PACKAGE

PLUGIN = """
import sys
def install():
    sys.loaded_before = [name for name in sys.modules if name.startswith("bottleneck_lab.")]
"""


def run(code, plugin):
    environment = {**os.environ, VARIABLE: str(plugin)}
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_plugin_is_installed_before_any_other_module_of_the_package(tmp_path):
    (tmp_path / "shadow.py").write_text(PLUGIN)
    code = "import bottleneck_lab.errors, sys; print(sys.loaded_before)"
    assert run(code, tmp_path / "shadow.py").stdout == "['bottleneck_lab.plugin']\n"


def test_a_plugin_that_is_not_there_is_named(tmp_path):
    done = run("import bottleneck_lab", tmp_path / "missing.py")
    assert done.returncode == 1
    assert f"{VARIABLE} names no Python module: {tmp_path / 'missing.py'}" in done.stderr


def test_a_sandboxed_worker_loads_it_too(context, tmp_path, monkeypatch):
    (tmp_path / "shadow.py").write_text(PLUGIN)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "shadow.py"))
    context.submission.mkdir()
    entry = context.submission / "entry.py"
    entry.write_text("import sys\ndef load(device): return lambda: len(sys.loaded_before)")
    with CallSession.start(context, "learner", context.submission, "entry.py", limits()) as session:
        assert session.call([])[1] == [1]


def limits():
    from .test_workers import LIMITS

    return LIMITS


@pytest.mark.parametrize("name", PACKAGE)
def test_every_name_that_the_pretend_gpu_replaces_is_there(name):
    """A name that has moved would stay as it is, and a rehearsal would look for a real GPU."""
    module = import_module(name)
    for replaced in PACKAGE[name](module):
        assert hasattr(module, replaced)


def test_what_pretends_is_gone_afterwards():
    real = cuda_devices
    with pretend_gpu.installed():
        assert sys.modules["bottleneck_lab.measure.gpu"].cuda_devices()[0][0] == pretend_gpu.NAME
        assert devices.cuda_devices is not real
    assert sys.modules["bottleneck_lab.measure.gpu"].cuda_devices is real
    assert devices.cuda_devices is real
    assert VARIABLE not in os.environ
