"""How processes ended, as the kernel tells it to whoever watched them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvcluster.driver.exits import sentence_of, watch

WAITS = [sys.executable, "-c", "import sys; sys.exit(int(sys.stdin.readline()))"]


def ended(end: Callable[[subprocess.Popen[bytes]], object]) -> tuple[str | None, str | None]:
    """What is said of a child before and after its end."""
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as child:
        watched = watch(child.pid)
        assert watched is not None
        before = watched.ending()
        end(child)
        child.wait()
    after = watched.ending()
    watched.close()
    return before, after


def is_told_here() -> bool:
    """Whether this kernel says how a process ended."""
    return ended(subprocess.Popen.kill)[1] != ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_process_that_a_signal_killed_is_told_by_the_signals_name_where_the_kernel_says_it(
    number: signal.Signals,
) -> None:
    wanted = (None, f"it was killed by {number.name}") if is_told_here() else ("", "")
    assert ended(lambda child: child.send_signal(number)) == wanted


@pytest.mark.parametrize(("code", "sentence"), [(0, ""), (70, "it ended with exit code 70")])
def test_an_exit_code_is_told_unless_it_is_0(code: int, sentence: str) -> None:
    def leave(child: subprocess.Popen[bytes]) -> None:
        assert child.stdin is not None
        child.stdin.write(f"{code}\n".encode())
        child.stdin.flush()

    assert ended(leave) == ((None, sentence) if is_told_here() else ("", ""))


def test_whoever_asks_before_it_was_reaped_is_told_once_it_is() -> None:
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as child:
        watched = watch(child.pid)
        assert watched is not None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and not reaped
        assert not watched.ending()
        reaping = threading.Thread(target=child.wait)
        with ThreadPoolExecutor(1) as asking:
            said = asking.submit(watched.ending_within, 20.0)
            reaping.start()
            assert said.result() == ("it was killed by SIGKILL" if is_told_here() else "")
        reaping.join()
    assert watched.ending_within(0.0) == said.result()
    watched.close()


def test_nobody_waits_for_longer_than_so_for_the_end_of_a_process_that_lives() -> None:
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as child:
        watched = watch(child.pid)
        assert watched is not None
        assert watched.ending_within(0.01) == ""
        child.kill()
    watched.close()


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert sentence_of(40) == "it was killed by signal 40"


def test_a_process_that_is_gone_cannot_be_watched() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert watch(child.pid) is None
