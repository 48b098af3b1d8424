"""Starting a lab, and starting it again without losing anything."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from bottleneck_lab.catalog import Device, Lab, current_name
from bottleneck_lab.errors import MachineError, UsageError
from bottleneck_lab.workspace.atomic import (
    TEMPORARY,
    clear,
    explained,
    publish,
    remove,
    sync_folder,
    write_bytes,
)
from bottleneck_lab.workspace.diagnosis_file import is_given, load_answers, save_answers
from bottleneck_lab.workspace.folder import (
    STATE,
    Workspace,
    WorkspaceInfo,
    handed_out,
    is_workspace,
    now,
    open_workspace,
    source_of,
    sums_of,
    to_json,
)

GITIGNORE = ".gitignore"
_STARTING = "workspace.json.starting"
"""Name of `workspace.json` until everything else is in place."""


def _pristine(lab: Lab, name: str) -> bytes:
    try:
        return source_of(lab, name).read_bytes()
    except OSError as error:
        raise MachineError(
            f"{name} of the lab '{lab.slug}' is missing from this installation.",
            "Install bottleneck-lab again.",
        ) from error


def _info(lab: Lab, device: Device, files: dict[str, bytes]) -> WorkspaceInfo:
    return WorkspaceInfo(
        lab.slug, lab.content_hash(), lab.spec.version, device, now(), sums_of(files)
    )


def _require_free(root: Path, lab: Lab) -> None:
    """Raise UsageError for a folder that holds something else."""
    state = root / STATE
    with explained(root):
        # A folder whose start was interrupted is ours to finish.
        if not root.exists() or (state / _STARTING).exists():
            return
        if not root.is_dir():
            raise UsageError(
                f"{root} is a file, not a folder.",
                f"Name another folder: `lab start {lab.slug} FOLDER`.",
            )
        entries = list(root.iterdir())
        if entries and (entries != [state] or any(state.iterdir())):
            raise UsageError(
                f"{root} is not empty.",
                f"Name an empty or new folder: `lab start {lab.slug} FOLDER`.",
            )


def start_workspace(lab: Lab, root: Path, device: Device) -> tuple[Workspace, bool]:
    """Make `root` a workspace of `lab`; return it, and True when it is new.

    On an error everything that was made is removed again. Raises UsageError for a folder that holds
    anything else, MachineError when it cannot be written.
    """
    if is_workspace(root):
        workspace = open_workspace(root)
        held = current_name(workspace.info.lab)
        if held == lab.slug:
            return workspace, False
        raise UsageError(
            f"{root} already holds the lab '{held}'.",
            f"Name another folder: `lab start {lab.slug} FOLDER`.",
        )
    _require_free(root, lab)
    files = {name: _pristine(lab, name) for name in handed_out(lab)}
    existed = root.exists()
    try:
        _fill(root, files, to_json(_info(lab, device, files)))
    except BaseException:
        _empty(root, files, keep_root=existed)
        raise
    return open_workspace(root), True


def _fill(root: Path, files: dict[str, bytes], info: bytes) -> None:
    """Write the files of a new workspace.

    It counts as a workspace from the moment `workspace.json` stands, which gets its name last.
    """
    state = root / STATE
    with explained(root):
        state.mkdir(parents=True, exist_ok=True)
        clear(state)
        for name in files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
    write_bytes(state / _STARTING, info)
    for name, data in files.items():
        write_bytes(root / name, data, scratch=state)
    if in_repository(root) and not (root / GITIGNORE).exists():
        # As venv does: a lab inside somebody's repository stays out of its commits, and out of the
        # linters that read .gitignore.
        write_bytes(root / GITIGNORE, b"# Created by `lab start`.\n*\n", scratch=state)
    with explained(root):
        (state / _STARTING).rename(state / "workspace.json")
        sync_folder(state)


def in_repository(folder: Path) -> bool:
    """Return True if `folder` lies in a git repository. In a worktree `.git` is a file."""
    return any((parent / ".git").exists() for parent in folder.parents)


def _empty(root: Path, files: dict[str, bytes], *, keep_root: bool) -> None:
    """Remove the files of a start that failed, as far as possible.

    If something stays, the marker lets the next `lab start` go on here.
    """
    if not root.is_dir():
        return
    ours = {STATE, GITIGNORE, *(Path(name).parts[0] for name in files)}
    with suppress(OSError):
        for path in list(root.iterdir()):
            if path.name in ours:
                remove(path)
        if not keep_root:
            root.rmdir()


def edited(workspace: Workspace) -> list[str]:
    """Return the names of handed-out files that were changed or deleted."""
    names = []
    for name, sha256 in workspace.info.files.items():
        path = workspace.root / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            names.append(name)
    return names


def given_edited(workspace: Workspace) -> list[str]:
    """Return the files that are the lab's own, and were changed or deleted here: a check uses the
    lab's. Text for readers does not count.
    """
    lab = workspace.lab
    given = {*lab.spec.files} - {*lab.spec.editable}
    return [name for name in edited(workspace) if name in given and not name.endswith(".md")]


def describe_given(workspace: Workspace, uses: str) -> str:
    """State which of the lab's own files differ here, and what that means, `uses`; empty if
    none.
    """
    names = given_edited(workspace)
    if not names:
        return ""
    what = "differ" if len(names) > 1 else "differs"
    return (
        f"{', '.join(names)} {what} from the lab's: {uses}. `lab reset --update` brings the"
        " lab's back."
    )


def keep(workspace: Workspace, names: list[str]) -> Path | None:
    """Save the learner's version of `names` under `.lab/kept/`, and return the folder.

    None when there was nothing to save. Call it inside `workspace.writing()`.
    """
    present = [name for name in names if (workspace.root / name).is_file()]
    if not present:
        return None
    shelf = workspace.state / "kept"
    temporary = shelf / f"{TEMPORARY}kept"
    with explained(shelf):
        for name in present:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_bytes((workspace.root / name).read_bytes())
    name = now().replace(":", "")
    final, number = shelf / name, 1
    while final.exists():  # two resets within one second are kept apart
        number += 1
        final = shelf / f"{name}-{number}"
    publish(temporary, final)
    return final


@contextmanager
def handed_out_files(lab: Lab) -> Iterator[Path]:
    """Yield a temporary folder with the lab's files as a learner gets them."""
    with tempfile.TemporaryDirectory(prefix="lab-shipped-") as name:
        for file in handed_out(lab):
            copy = Path(name) / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(_pristine(lab, file))
        yield Path(name)


def reset_workspace(workspace: Workspace, *, update_only: bool = False) -> Path | None:
    """Put the installed lab's files back, and return where the learner's versions were saved.

    None when nothing was edited. With `update_only` the files that the learner is meant to edit,
    and the diagnosis, stay as they are; only the others follow the installed lab. History, captures
    and hints are never touched.
    """
    lab = workspace.lab
    files = {name: _pristine(lab, name) for name in handed_out(lab)}
    stays = {*lab.spec.editable, "diagnosis.toml"} if update_only else set()
    with workspace.writing("lab reset"):
        stays = {name for name in stays if (workspace.root / name).is_file()}
        kept = keep(workspace, [name for name in edited(workspace) if name not in stays])
        for name in files.keys() - stays:
            with explained(workspace.root / name):
                (workspace.root / name).parent.mkdir(parents=True, exist_ok=True)
            workspace.write(workspace.root / name, files[name])
        info = msgspec.structs.replace(
            _info(lab, workspace.info.device, files), created=workspace.info.created
        )
        workspace.write_state("workspace.json", info)
        workspace.info = info
    return kept


def take_solution(workspace: Workspace) -> Path | None:
    """Put the reference solution's editable files into the workspace, and its diagnosis, but for
    what the learner has answered; files of the lab's own that were changed are the lab's again.
    Answers that a check measures itself are never copied: they are another machine's figures.

    Returns where the learner's own were saved; None when nothing was edited.
    """
    lab = workspace.lab
    own, reference = load_answers(workspace.root), load_answers(lab.solution)
    is_answered = any(is_given(answer) for answer in own.values())
    measured = lab.spec.devices[workspace.info.device].judges_diagnosis
    keeps = is_answered or measured
    wanted = lab.spec.editable if keeps else [*lab.spec.editable, "diagnosis.toml"]
    names = [name for name in wanted if (lab.solution / name).is_file()]
    files = {name: (lab.solution / name).read_bytes() for name in names}
    files |= {name: _pristine(lab, name) for name in given_edited(workspace)}
    with workspace.writing("lab solution"):
        kept = keep(workspace, [name for name in edited(workspace) if name in files])
        for name, data in files.items():
            workspace.write(workspace.root / name, data)
    if is_answered and not measured:
        open_ = {id_: each for id_, each in reference.items() if not is_given(own.get(id_))}
        save_answers(workspace, open_)
    return kept
