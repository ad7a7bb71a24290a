"""What `import kvcluster` offers: every name that it lists, and nothing is imported before it is used."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import kvcluster


@pytest.mark.parametrize("name", kvcluster.__all__)
def test_every_name_that_is_listed_is_there(name: str) -> None:
    assert getattr(kvcluster, name).__module__.startswith("kvcluster.")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_devices'"):
        _ = kvcluster.open_devices


def test_importing_imports_no_room() -> None:
    script = "import sys, kvcluster; print([name for name in sys.modules if name.startswith('kvcluster.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_prefix_is_the_same_in_another_process() -> None:
    prefix = kvcluster.Prefix("host", 1, 2, tokens=70, reusable_tokens=64)
    assert pickle.loads(pickle.dumps(prefix)) == prefix
