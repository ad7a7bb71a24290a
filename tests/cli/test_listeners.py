"""A reader that leaves changes neither the job nor its exit code; Ctrl-C is answered quietly from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PRINT = """
import sys
from kvcluster.cli.listeners import reader_may_leave
with reader_may_leave(sys.stdout):
    sys.stdin.readline()
    print("x" * 100_000, flush=True)
    print("never reached by this reader", flush=True)
print("nor this", flush=True)
sys.exit(7)
"""

INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "kvcluster.cli.main":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
from kvcluster.cli.entry import main
main()
"""


def test_a_reader_that_has_left_does_not_change_the_exit_code() -> None:
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", PRINT], stdin=subprocess.PIPE, stdout=writer) as process:
        os.close(writer)
        os.close(reader)
        process.communicate(b"go\n")
    assert process.returncode == 7


def test_ctrl_c_among_the_first_imports_is_exit_code_130_and_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")
