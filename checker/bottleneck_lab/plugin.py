"""Load a module into every process of this package: `BOTTLENECK_LAB_PLUGIN=PATH`.

Tests and rehearsals use it to put something in place of the machine, such as a GPU that is not
there (scripts/pretend_gpu), in the command and in every process that it starts, sandboxed or not.
`PATH` is absolute: a Python file, or the folder of a package. Its function `install()` is called
when `bottleneck_lab` is first imported, before any other module of the package is.

It gives nobody a power that he does not have anyway: whoever sets the verifier's environment can
also change its code.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

VARIABLE = "BOTTLENECK_LAB_PLUGIN"


def plugin_path() -> Path | None:
    """Return the path that the environment names, or None."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None


def load_plugin() -> None:
    """Import the plugin under its own name and install it; once a process, and only if there is
    one.

    Raises ImportError if the path holds no module.
    """
    path = plugin_path()
    if path is None or path.stem in sys.modules:
        return
    # By its path and not by its name: an isolated worker (`python -I`) has no PYTHONPATH.
    file = path / "__init__.py" if path.is_dir() else path
    spec = importlib.util.spec_from_file_location(path.stem, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ImportError(f"{VARIABLE} names no Python module: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    module.install()
