"""What the command needs beside Serve: a free port, a config that Serve takes, a sentence out of its pages."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from actors.endpoint import check_room, checked_by_serve
from actors.listening import check_free, url_of
from actors.rollout import reason_of_failure
from actors.serve_app import build
from kvcluster.config import ConfigError
from kvcluster.config_file import Endpoint, Listening, endpoint_from

PAGES = """The deployment failed to start 3 times in a row. See controller logs for details. Error:
ray::ServeReplica:kvcluster:m.initialize_and_get_metadata() (pid=1)
  File "/lib/ray/serve/_private/replica.py", line 1928, in initialize
RuntimeError: Traceback (most recent call last):
  File "/lib/actors/replica.py", line 73, in open_replica
    raise ConfigError("not: this")
kvcluster.config.ConfigError: device_memory is 4KiB, and must be more: give more
"""


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def endpoint(host: str = "127.0.0.1", port: int = 8000, **application: Any) -> Endpoint:
    made = endpoint_from({"model": "m"}, Listening(host, port))
    [first] = made.document["applications"]
    return Endpoint(made.settings, {**made.document, "applications": [{**first, **application}]})


def test_a_port_that_is_taken_is_refused_with_the_option_that_names_another(taken: int) -> None:
    with pytest.raises(ConfigError, match=f"port {taken} of 127.0.0.1 is taken: name another one with --port"):
        check_free("127.0.0.1", taken)


@pytest.mark.parametrize("host", ["192.0.2.77", "no such host"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="nobody can listen at port 8000 of"):
        check_free(host, 8000)


def test_a_port_that_was_free_stays_so(taken: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_free("127.0.0.1", port)
    check_free("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000")],
)
def test_the_url_is_one_that_works_on_this_machine(host: str, url: str) -> None:
    assert url_of(endpoint(host)) == url
    assert url_of(endpoint(host, route_prefix="/llm")) == f"{url}/llm"


@pytest.mark.parametrize(
    ("args", "nodes_cpus", "sentence"),
    [
        ({"nodes": 2}, [8], "nodes is 2, and the cluster has 1: name fewer"),
        ({"devices": "host:0,1", "workers_per_device": 2}, [3], "4 replicas take a CPU each, and Ray has 3"),
        ({"nodes": "all", "devices": "host:0,1"}, [2, 1], "4 replicas take a CPU each, and Ray has 3"),
    ],
)
def test_a_cluster_without_room_is_refused_with_what_is_missing(
    args: dict[str, Any], nodes_cpus: list[int], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_room(endpoint_from({"model": "m", **args}, Listening()), nodes_cpus)
    check_room(endpoint_from({"model": "m", **args}, Listening()), [8, 8])


def test_what_serve_does_not_take_is_one_sentence_with_its_place() -> None:
    wrong = endpoint(deployments=[{"name": "m", "max_ongoing_requests": "many"}])
    with pytest.raises(ConfigError) as refused:
        checked_by_serve(wrong)
    assert str(refused.value).startswith("applications.0.deployments.0.max_ongoing_requests")
    assert "\n" not in str(refused.value)


def test_of_serve_s_pages_our_own_error_is_told() -> None:
    said = ["Failed to update the deployments ['m'].", PAGES, ""]
    assert reason_of_failure(said) == "device_memory is 4KiB, and must be more: give more"


@pytest.mark.parametrize("said", [["Failed to update.\n  at last: out of memory\n\n"], [""], []])
def test_where_there_is_none_serve_s_last_line_is_told(said: list[str]) -> None:
    sentence = reason_of_failure(said)
    assert sentence.startswith("Ray Serve does not start the application: ")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({}, "model is missing"),
        ({"model": "m", "max_strems": 1}, "max_strems is not a setting: did you mean max_streams?"),
    ],
)
def test_args_that_serve_brings_are_checked_by_the_application_itself(args: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        build(args)
