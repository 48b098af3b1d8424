"""Command lines follow what the installed tool reports of itself: excerpts of two generations'
help, options only.
"""

import os
from pathlib import Path

import pytest

from bottleneck_lab.capture import ncu, nsys, program, sanitizer
from bottleneck_lab.capture.launchers import as_python, split
from bottleneck_lab.capture.recording import CommandEnd, Options, Request, typed
from bottleneck_lab.errors import CaptureError, MachineError, UsageError

NSYS_2022 = """
\t-s, --sample=
\t   Possible values are 'process-tree' or 'none'.
\t--cpuctxsw=
\t--cuda-graph-trace=
\t--export=<format>[,<format>...]
\t-f, --force-overwrite=
\t--mpi-impl=
\t   Applicable only when --trace=mpi is given.
\t-o, --output=
\t-t, --trace=
\t   Possible values are 'cuda', 'nvtx', 'cublas', 'cublas-verbose', 'mpi',
\t   'osrt', 'cudnn' or 'none'.
\t--trace-fork-before-exec=
\t   Possible values are 'true' or 'false'.
\t--wait=
"""
NSYS_2026 = (
    NSYS_2022.replace("'mpi',", "'mpi', 'nccl', 'cuda-sw',")
    + """
\t--python-backtrace=
\t--pytorch=
\t--discard-environment=
"""
)
NCU = """
  --target-processes arg (=application-only)
  --clock-control arg (=base)
  -k [ --kernel-name ] arg
  -c [ --launch-count ] arg
  -s [ --launch-skip ] arg (=0)
  --set arg
  --section-folder arg
  --metrics arg
"""
SETS = """
Identifier Sections                     Enabled Estimated Metrics
---------- ---------------------------- ------- -----------------
default    LaunchStats, Occupancy       yes     36
full       ComputeWorkload, Occupancy   no      162
"""
DIRECT = ("python", "train.py", "--lr", "0.1")


def request(*words, **options) -> Request:
    return Request(words or DIRECT, Path("/here"), Path("/out"), options=Options(**options))


def nsys_line(help_text, *words, **options):
    can = nsys.capabilities("NVIDIA Nsight Systems version 2022.4.2.1-df", help_text)
    return nsys.command(
        "nsys", can, request(*words, **options), split(words or DIRECT, "/py/python")
    )


class TestNsys:
    @pytest.mark.parametrize(
        ("help_text", "has", "lacks"),
        [
            (
                NSYS_2022,
                ["--trace=cuda,nvtx,osrt,cudnn,cublas", "--sample=none"],
                ["--pytorch", "--discard", "nccl"],
            ),
            (
                NSYS_2026,
                ["--trace=cuda,nvtx,osrt,cudnn,cublas,nccl", "--pytorch=autograd-nvtx"],
                ["--python-backtrace"],
            ),
        ],
        ids=["2022", "2026"],
    )
    def test_only_options_that_the_release_knows(self, help_text, has, lacks):
        line = nsys_line(help_text)
        assert line[:2] == ["nsys", "profile"]
        assert line[-5:] == ["--output=/out/report", *DIRECT]
        assert set(has) <= set(line)
        assert not [word for word in line for absent in lacks if absent in word]

    def test_lines_of_python_where_they_can_be_had(self):
        assert "--python-backtrace=cuda" in nsys_line(NSYS_2026, stack=True)
        assert not any("backtrace" in word for word in nsys_line(NSYS_2022, stack=True))

    def test_torchrun_gives_one_report_a_rank(self):
        line = nsys_line(NSYS_2022, "torchrun", "--nproc-per-node", "2", "train.py", "-x")
        assert line[:5] == ["torchrun", "--nproc-per-node", "2", "--no-python", "nsys"]
        assert line[-4:] == ["--output=/out/report_%q{RANK}", "/py/python", "train.py", "-x"]

    def test_mpi_is_traced_only_where_it_is_asked_for(self, tmp_path, monkeypatch):
        line = nsys_line(NSYS_2022, "mpirun", "-np", "2", "train.py")
        assert line[:4] == ["mpirun", "-np", "2", "nsys"]
        assert "--mpi-impl=openmpi" in line
        assert "--trace=cuda,nvtx,osrt,cudnn,cublas,mpi" in line
        assert "--output=/out/report_%q{OMPI_COMM_WORLD_RANK}" in line
        assert not any("mpi" in word for word in nsys_line(NSYS_2022))

    @pytest.mark.parametrize(
        "texts", [("", NSYS_2022), ("version 2022.4.2", "Usage: something else")]
    )
    def test_a_tool_that_says_nothing_usable_is_refused(self, texts):
        with pytest.raises(CaptureError, match="does not report its version"):
            nsys.capabilities(*texts)

    @pytest.mark.parametrize(
        ("file", "words"),
        [("report.qdstrm", "importer is missing"), (None, "left no report; the program exited")],
    )
    def test_no_report_is_explained_whatever_the_exit_status(self, tmp_path, file, words):
        if file:
            (tmp_path / file).touch()
        with pytest.raises(CaptureError, match=words):
            nsys.exported("nsys", tmp_path, CommandEnd(0, False, False, 1.0, "SKIPPED"))

    def test_ranks_are_in_the_order_of_their_numbers(self, tmp_path):
        for rank in range(12):
            (tmp_path / f"report_{rank}.sqlite").touch()
        files = nsys.exported("nsys", tmp_path, CommandEnd(0, False, False, 1.0, ""))
        assert files == [f"report_{rank}.sqlite" for rank in range(12)]


class TestNcu:
    def line(self, sets=SETS, help_text=NCU, **options):
        can = ncu.capabilities("Version 2022.3.0.0 (build 1)", help_text, sets)
        return ncu.command("ncu", can, request(**options), split(DIRECT, "/py/python"))

    def test_the_full_set_of_a_few_kernels_with_the_clocks_left_alone(self):
        line = typed(self.line(kernel="gemm", skip=3), request())
        assert (
            "--set full --target-processes all --clock-control none --kernel-name regex:gemm"
            in line
        )
        assert "--launch-skip 3 --launch-count 5" in line

    def test_the_program_keeps_its_own_home(self, monkeypatch):
        monkeypatch.setenv("HOME", "/home/me")
        assert self.line()[-6:] == ["env", "HOME=/home/me", *DIRECT]

    def test_metrics_one_by_one_where_there_are_no_sections(self):
        line = self.line(sets="")
        assert "--set" not in line
        assert line[line.index("--section-folder") + 1] == "/out", (
            "without any, ncu refuses to start"
        )
        assert (
            "dram__throughput.avg.pct_of_peak_sustained_elapsed"
            in line[line.index("--metrics") + 1]
        )
        assert self.line(metrics=("a", "b"))[2] == "a,b"

    def test_an_option_that_the_release_lacks_is_left_out_with_its_value(self):
        line = self.line(help_text=NCU.replace("--clock-control", "--other"))
        assert "--clock-control" not in line
        assert "none" not in line

    @pytest.mark.parametrize(
        ("said", "error", "words"),
        [
            (
                "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
                MachineError,
                "administrators",
            ),
            (
                "==ERROR== Failed to connect to the CUDA driver",
                MachineError,
                "no GPU that this process",
            ),
            (
                "==WARNING== No kernels were profiled.",
                CaptureError,
                "did not see any of the kernels",
            ),
            ("Traceback", CaptureError, "exited with status 1"),
        ],
    )
    def test_what_it_says_is_understood(self, said, error, words):
        found = ncu.explain(
            CommandEnd(1, False, False, 1.0, said.replace("Failed to", "failed to"))
        )
        assert isinstance(found, error)
        assert words in found.message
        assert found.remedy


class TestSanitizer:
    def test_only_options_that_it_knows(self):
        line = sanitizer.command(
            "cs", frozenset({"--tool", "--target-processes"}), request(), "racecheck"
        )
        assert line == [
            "cs",
            "--tool",
            "racecheck",
            "--target-processes",
            "all",
            "--log-file",
            "/out/racecheck.txt",
            *DIRECT,
        ]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("========= ERROR SUMMARY: 0 errors", "found nothing"),
            (
                "========= ERROR SUMMARY: 3 errors\n========= ERROR SUMMARY: 1 error",
                "found 4 problems",
            ),
            (
                "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)",
                "found 2 problems",
            ),
        ],
    )
    def test_its_summary_is_read(self, tmp_path, text, words):
        (tmp_path / "r.txt").write_text(text)
        assert words in sanitizer.conclusion_of(
            tmp_path / "r.txt", CommandEnd(0, False, False, 1.0, "")
        )

    def test_a_run_without_a_summary_proves_nothing(self, tmp_path):
        with pytest.raises(CaptureError, match="was inconclusive"):
            sanitizer.conclusion_of(tmp_path / "r.txt", CommandEnd(0, False, False, 1.0, ""))


class TestTorch:
    def test_options_become_flags(self):
        line = program.command(
            request(*DIRECT[1:], shapes=False, stack=True, schedule=(1, 2, 3)), "/py/python"
        )
        assert line[0] == "/py/python"
        assert "--shapes" not in line
        assert '{"wait": 1, "warmup": 2, "active": 3}' in line
        assert line[line.index("--") + 1 :] == ["train.py", "--lr", "0.1"]

    def test_frames_are_recorded_by_a_run_of_their_own(self):
        """They make Python several times as slow, so that the times come from the other run."""
        options = request(*DIRECT[1:], stack=True, memory=True)
        plain = program.command(options, "/py/python")
        framed = program.command(options, "/py/python", frames=True)
        assert "--stack" not in plain
        assert {"--shapes", "--memory", "/out/trace.json.gz"} <= set(plain)
        assert {"--stack", "/out/frames.json.gz"} <= set(framed)
        assert not {"--shapes", "--memory", "--snapshot"} & set(framed)

    def test_every_rank_is_profiled_under_torchrun(self):
        line = program.command(request("torchrun", "--nproc-per-node=2", "train.py"), "/py/python")
        assert line[:4] == ["torchrun", "--nproc-per-node=2", "--no-python", "/py/python"]
        assert line[-2:] == ["--", "train.py"]

    def test_what_is_not_python_is_refused(self):
        with pytest.raises(UsageError, match="'true' is not one"):
            program.command(request("true"), "/py/python")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("x.py", "1"), (["/py/python"], ["x.py", "1"])),
        (
            ("nowhere/python3.11", "-u", "-X", "dev", "x.py"),
            (["/py/python", "-u", "-X", "dev"], ["x.py"]),
        ),
        (("nowhere/python", "-m", "pkg", "-v"), (["/py/python"], ["-m", "pkg", "-v"])),
        (("nowhere/python", "-c", "pass"), (["/py/python"], ["-c", "pass"])),
        (("nowhere/python",), None),
        (("ls", "x.py"), None),
    ],
)
def test_python_is_told_from_other_programs(words, found):
    assert as_python(words, "/py/python") == found


def test_an_installed_script_is_python_too(tmp_path, monkeypatch):
    script = tmp_path / "tool"
    script.write_text("#!/opt/python3\nimport x\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert as_python(("tool", "a"), "/py/python") == (["/opt/python3"], [str(script), "a"])


def test_torchrun_by_its_module_is_known():
    launch = split(
        ("python", "-m", "torch.distributed.run", "--standalone", "train.py"), "/py/python"
    )
    assert launch.launcher == (
        "python",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--no-python",
    )
    assert launch.program == ("/py/python", "train.py")
