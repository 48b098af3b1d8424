"""The server's threads may decode the same Struct for the first time at the same moment."""

import subprocess
import sys

TRY = """
import os, sys, threading
from pathlib import Path
import msgspec
from bottleneck_lab.cohort.folder import open_cohort
from bottleneck_lab.cohort.protocol import Submission
from bottleneck_lab.cohort.server import app
from bottleneck_lab.grading.verdict import Verdict

def decode(ready):
    ready.wait()
    for struct in (Submission, Verdict):
        try:
            msgspec.json.decode(b'{"record": {"commitments": [], "help": {}}}', type=struct)
        except msgspec.ValidationError:
            pass

with open_cohort(Path(sys.argv[1])) as cohort:
    app.create_app(cohort, "http://127.0.0.1")
sys.setswitchinterval(1e-6)
crashed = 0
for _ in range(20):
    if not (child := os.fork()):
        ready = threading.Barrier(16)
        threads = [threading.Thread(target=decode, args=(ready,)) for _ in range(16)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        os._exit(0)
    crashed += os.waitpid(child, 0)[1] != 0
print(crashed)
"""


def test_threads_of_a_server_may_begin_with_the_same_struct(sqlite_room):
    """About every third of these processes crashes where `inspect_structs` was not called."""
    command = [sys.executable, "-c", TRY, str(sqlite_room.cohort.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
