"""Which GPUs a worker may open: told from a made-up /dev and a made-up /proc of the driver."""

from __future__ import annotations

import pytest

from bottleneck_lab.measure.sandbox import gpus, visible

UUIDS = ("GPU-aaaa1111", "GPU-bbbb2222", "GPU-cccc3333")
MINORS = (2, 0, 1)  # the driver numbers nodes in its own order
CONTROL = ["nvidia-caps", "nvidia-uvm", "nvidiactl"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Three GPUs whose nodes are numbered otherwise than their PCI addresses."""
    dev, driver = tmp_path / "dev", tmp_path / "gpus"
    dev.mkdir()
    for name in (*CONTROL, "nvidia0", "nvidia1", "nvidia2", "null"):
        (dev / name).touch()
    for at, (uuid, minor) in enumerate(zip(UUIDS, MINORS, strict=True)):
        folder = driver / f"0000:{at + 1}b:00.0"
        folder.mkdir(parents=True)
        text = (
            f"Model: \t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Location: \t {folder.name}\nDevice"
            f" Minor: \t {minor}\n"
        )
        (folder / "information").write_text(text)
    monkeypatch.setattr(gpus, "DEV", dev)
    monkeypatch.setattr(gpus, "DRIVER", driver)
    return dev


def nodes(**environment: str) -> list[str]:
    return [node.name for node in gpus.visible_nodes(gpus.chosen_gpus(environment))]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        ("0", ["nvidia2"]),
        ("1", ["nvidia0"]),
        ("2,0", ["nvidia1", "nvidia2"]),
        ("GPU-bbbb", ["nvidia0"]),
    ],
)
def test_only_the_chosen_gpu_and_what_controls_the_driver_is_seen(chosen, seen):
    assert nodes(CUDA_VISIBLE_DEVICES=chosen, CUDA_DEVICE_ORDER="PCI_BUS_ID") == sorted(
        [*CONTROL, *seen]
    )


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        {"CUDA_VISIBLE_DEVICES": "MIG-1234", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        {"CUDA_VISIBLE_DEVICES": "GPU-dddd"},
    ],
    ids=["none chosen", "fastest first", "none such", "a slice", "elsewhere"],
)
def test_where_it_cannot_be_told_which_is_meant_all_are_seen(environment):
    assert nodes(**environment) == sorted([*CONTROL, "nvidia0", "nvidia1", "nvidia2"])


def test_a_container_counts_the_gpus_that_it_has(machine):
    (machine / "nvidia2").unlink()
    assert nodes(CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == sorted(
        [*CONTROL, "nvidia0"]
    )


def test_the_sandbox_binds_no_other_node_and_names_the_gpu_by_what_it_is(
    machine, monkeypatch, tmp_path
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setattr(visible, "bubblewrap", lambda: "bwrap")
    monkeypatch.setattr(visible, "namespaces", lambda: ["bwrap"])
    paths = visible.Paths(tmp_path)
    command = visible.sandboxed(["true"], paths, 1 << 30, gpu=True)
    bound = [command[at + 1] for at, word in enumerate(command) if word == "--dev-bind-try"]
    assert bound == [str(machine / name) for name in sorted([*CONTROL, "nvidia0"])]
    assert visible.worker_environment(paths, 1, gpu=True)["CUDA_VISIBLE_DEVICES"] == UUIDS[1]
    assert "--dev-bind-try" not in visible.sandboxed(["true"], paths, 1 << 30, gpu=False)
