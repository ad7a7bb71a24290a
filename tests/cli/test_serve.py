"""`kvcluster serve`: options, exit codes and sentences. What it opens is a stand-in; on Ray it is in `tests.actors`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from typer.testing import CliRunner, Result

from kvcluster.cli.main import app
from kvcluster.config import ConfigError
from kvcluster.config_file import Endpoint
from kvcluster.engine.refusals import ModelNotFound

FILE = """
http_options: {port: 9}
applications:
  - import_path: actors.serve_app:build
    args: {models: {small: /a, large: /b}}
"""


class Opened(NamedTuple):
    url: str
    ray_address: str


class StandIn(ModuleType):
    """In the place of `actors.endpoint`: what was opened, and is open; a signal comes as soon as it is."""

    def __init__(self) -> None:
        super().__init__("actors.endpoint")
        self.opened: list[tuple[Endpoint, str | None]] = []
        self.open = 0
        self.waits_for: list[str] = []

    def checked_by_serve(self, endpoint: Endpoint) -> None:
        if endpoint.application.get("route_prefix") == "x":
            raise ConfigError("applications.0.route_prefix: it must begin with /")

    def check_models(self, endpoint: Endpoint) -> None:
        if "/nowhere" in endpoint.settings.served.values():
            raise ModelNotFound(model="/nowhere", reason="no such folder")

    @contextmanager
    def open_endpoint(
        self, endpoint: Endpoint, *, address: str | None, tell: Callable[[str], object]
    ) -> Iterator[Opened]:
        for sentence in self.waits_for:
            tell(sentence)
        self.opened.append((endpoint, address))
        self.open += 1
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        try:
            yield Opened(f"http://{endpoint.host}:{endpoint.port}", "127.0.0.1:6380")
        finally:
            timer.join()
            self.open -= 1


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    module = StandIn()
    monkeypatch.setitem(sys.modules, "actors.endpoint", module)
    monkeypatch.delenv("KVCLUSTER_API_KEY", raising=False)
    return module


def run(*options: str) -> Result:
    return CliRunner().invoke(app, ["serve", *options])


def test_it_says_where_it_is_and_how_to_ask_it_and_ends_at_a_signal(stand_in: StandIn) -> None:
    result = run("--model", "/models/tiny", "--port", "81", "--ray-address", "auto")
    assert result.exit_code == 130
    where, curl, top = result.stdout.splitlines()
    assert where == "tiny at http://127.0.0.1:81/v1 (Ctrl-C ends it)"
    assert curl.startswith("curl -N http://127.0.0.1:81/v1/completions -H")
    assert '{"model": "tiny", ' in curl
    assert top.endswith("kvcluster top --ray-address 127.0.0.1:6380")
    assert result.stderr.splitlines() == [
        "making tiny ready",
        "ending: what is under way is finished first",
        "kvcluster: stopped",
    ]
    assert stand_in.open == 0
    [(_, address)] = stand_in.opened
    assert address == "auto"


def test_what_takes_long_is_told_on_standard_error_before_it_is_ready(stand_in: StandIn) -> None:
    stand_in.waits_for = ["still waiting for tiny: no CPU"]
    result = run("--model", "/models/tiny")
    assert result.stderr.splitlines()[:2] == ["making tiny ready", "still waiting for tiny: no CPU"]
    assert "waiting" not in result.stdout


def test_the_file_says_what_is_served_and_options_win(stand_in: StandIn, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(FILE)
    run("--config", str(tmp_path / "c.yaml"), "--max-num-seqs", "3")
    [(endpoint, _)] = stand_in.opened
    assert endpoint.settings.served == {"small": "/a", "large": "/b"}
    assert (endpoint.settings.max_num_seqs, endpoint.port) == (3, 9)


def test_a_key_of_the_environment_is_the_endpoint_s_and_is_not_shown(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCLUSTER_API_KEY", "secret-words")
    result = run("--model", "m")
    [(endpoint, _)] = stand_in.opened
    assert endpoint.settings.api_key is not None
    assert endpoint.settings.api_key.get_secret_value() == "secret-words"
    assert "secret-words" not in result.output
    assert "Authorization: Bearer" in result.stdout


def test_a_check_opens_nothing_and_says_what_is_wrong(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(FILE)
    good = run("--config", str(file), "--check")
    assert (good.exit_code, good.stderr) == (0, f"{file}: nothing is wrong\n")
    file.write_text(FILE.replace("args:", "route_prefix: x\n    args:"))
    bad = run("--config", str(file), "--check")
    assert (bad.exit_code, bad.stderr) == (2, "kvcluster: applications.0.route_prefix: it must begin with /\n")
    gone = run("--model", "/nowhere", "--check")
    assert (gone.exit_code, "no such folder" in gone.stderr) == (2, True)
    assert stand_in.opened == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "model is missing: name it with --model or in the config file"),
        (["--model", "m", "--max-num-seqs", "0"], "max_num_seqs is 0, and must be"),
        (["--config", "none.yaml"], "none.yaml: the file cannot be read"),
    ],
)
def test_wrong_use_is_one_sentence(stand_in: StandIn, options: list[str], sentence: str) -> None:
    result = run(*options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"kvcluster: {sentence}")
    assert len(result.stderr.splitlines()) == 1


def test_without_ray_serve_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "actors.endpoint", None)
    result = run("--model", "m")
    assert result.exit_code == 2
    assert 'pip install "kvcluster[serve]"' in result.stderr
