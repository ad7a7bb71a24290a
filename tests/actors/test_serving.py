"""`kvcluster serve` on the session's cluster, asked over HTTP: two models on one device, and what dies under them.

One run for all tests, as a process of its own; each test finds it whole again, and the one that ends it comes last.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import ray
import yaml
from ray import serve

from actors.devices import living_device
from actors.ending import force_cluster, stop_cluster
from actors.endpoint import open_endpoint
from kvcluster.config import ConfigError
from kvcluster.config_file import Listening, endpoint_from
from tests.actors.answers import LENGTHS, PROMPTS
from tests.actors.world import TIMEOUT_S, World, eventually, kill_and_wait

ONE, TWO = "one", "two"
LONG = 300  # tokens, a second or more of computing
START_S = 180.0
ENDED = "data: [DONE]"


@dataclass(slots=True)
class Stream:
    """A streamed answer, read on a thread of its own: its events so far, and how it ended."""

    thread: threading.Thread = field(init=False)
    events: list[str] = field(default_factory=list)
    status: int = 0

    def begin(self, url: str, body: dict[str, Any]) -> Stream:
        self.thread = threading.Thread(target=self._read, args=(url, body))
        self.thread.start()
        eventually(lambda: len(self.events) > 3, "the stream has begun")
        return self

    def _read(self, url: str, body: dict[str, Any]) -> None:
        with httpx2.stream("POST", url, json=body, timeout=TIMEOUT_S) as response:
            self.status = response.status_code
            self.events += (line for line in response.iter_lines() if line)

    def end(self) -> list[str]:
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()
        return self.events

    @property
    def is_whole(self) -> bool:
        events = self.end()
        return events[-1] == ENDED and '"finish_reason":"length"' in events[-2]


class Site:
    """The command, its URL, and its device."""

    def __init__(self, run: subprocess.Popen[str], url: str, device: str, node_id: str) -> None:
        self.run = run
        self.url = url
        self.device = device
        self._node_id = node_id
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S)

    def ask(self, model: str, prompt: Sequence[int], tokens: int, **more: Any) -> httpx2.Response:
        return httpx2.post(f"{self.url}/v1/completions", json=asked(model, prompt, tokens, **more), timeout=TIMEOUT_S)

    def stream(self, model: str, prompt: Sequence[int] = PROMPTS[0], tokens: int = LONG) -> Stream:
        return Stream().begin(f"{self.url}/v1/completions", asked(model, prompt, tokens, stream=True))

    def kv(self) -> dict[str, Any]:
        state: dict[str, Any] = httpx2.get(f"{self.url}/v1/kv", timeout=TIMEOUT_S).json()
        return state

    def pid(self, model: str) -> int:
        [pid] = [each["pid"] for each in self.kv()["workers"] if each["word"] and each["word"]["model"] == model]
        return int(pid)

    def device_actor(self) -> Any:
        actor = living_device(self.device, self._node_id)
        assert actor is not None
        return actor

    def answers(self, model: str) -> bool:
        return self.ask(model, PROMPTS[1], 1).status_code == 200

    def become_whole(self) -> None:
        eventually(lambda: self.answers(ONE) and self.answers(TWO), "both models answer")

    def word(self, model: str) -> dict[str, Any]:
        """What its replica says of itself, a second ago at most."""
        [word] = [each["word"] for each in self.kv()["workers"] if each["word"] and each["word"]["model"] == model]
        return dict(word)

    @property
    def is_idle(self) -> bool:
        """Whether no request has memory: as the device itself says it."""
        figures = ray.get(self.device_actor().audit.remote(), timeout=TIMEOUT_S)
        return not figures.open_requests and figures.free_bytes + figures.retained_bytes == figures.capacity_bytes


def asked(model: str, prompt: Sequence[int], tokens: int, **more: Any) -> dict[str, Any]:
    greedy = {"temperature": 0, "ignore_eos": True}
    return {"model": model, "prompt": list(prompt), "max_tokens": tokens, **greedy, **more}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def written(path: Path, folder: Path, world: World) -> str:
    """A config file; its device's name."""
    settings = world.settings(model=str(folder), device_memory="1MiB")
    args = {
        "models": {ONE: str(folder), TWO: str(folder)},
        "devices": settings.devices,
        "device_memory": "1MiB",
        "granule": settings.granule,
        "host_memory": "1MiB",
        "dtype": "float32",
        "max_num_batched_tokens": 64,
        "max_num_seqs": 4,
        "threads": 1,
    }
    application = {"name": "kvcluster", "import_path": "actors.serve_app:build", "args": args}
    http = {"host": "127.0.0.1", "port": free_port()}
    path.write_text(yaml.safe_dump({"http_options": http, "applications": [application]}))
    [name] = settings.device_names
    return name


@pytest.fixture(scope="module")
def started(node_id: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    world, path = World(node_id, itertools.count(3_000)), tmp_path_factory.mktemp("serving")
    device = written(path / "c.yaml", folder, world)
    command = [str(Path(sys.executable).with_name("kvcluster")), "serve", "--config", str(path / "c.yaml")]
    address = ray.get_runtime_context().gcs_address
    with (path / "err").open("w") as errors:
        run = subprocess.Popen(
            [*command, "--ray-address", address],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        site = Site(run, url_of(run, path / "err"), device, node_id)
        yield site
    finally:
        run.terminate()  # where no test has ended it
        with suppress(subprocess.TimeoutExpired):
            run.wait(TIMEOUT_S)
        run.kill()
        run.wait()
        serve.shutdown()  # where it has not ended as it should
        if run.stdout:
            run.stdout.close()
        world.close()


def url_of(run: subprocess.Popen[str], errors: Path) -> str:
    """What it prints when it is ready."""
    timer = threading.Timer(START_S, run.kill)
    timer.start()
    assert run.stdout
    line = run.stdout.readline()
    timer.cancel()
    timer.join()
    found = re.fullmatch(r"one, two at (http://127.0.0.1:\d+)/v1 \(Ctrl-C ends it\)\n", line)
    assert found, errors.read_text()
    return found[1]


def refusal(response: httpx2.Response) -> httpx2.Response | None:
    return None if response.status_code == 200 else response


@pytest.fixture
def site(started: Site) -> Site:
    started.become_whole()
    return started


@pytest.fixture
def ending_site(site: Site) -> Site:
    """For the test that ends it: see `tests.actors.conftest`."""
    return site


def test_the_openai_client_streams_what_generate_says(site: Site, wanted: list[str]) -> None:
    request = asked(ONE, PROMPTS[0], LENGTHS[0], stream=True, stream_options={"include_usage": True})
    extra = {"ignore_eos": request.pop("ignore_eos")}
    *chunks, usage = site.client.completions.create(**request, extra_body=extra)
    assert "".join(chunk.choices[0].text for chunk in chunks) == wanted[0]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (len(PROMPTS[0]), LENGTHS[0])


def test_the_openai_client_finds_the_models_and_chats_with_them(site: Site) -> None:
    assert [model.id for model in site.client.models.list()] == [ONE, TWO]
    chat = site.client.chat.completions.create(
        model=TWO, messages=[{"role": "user", "content": "hello"}], max_completion_tokens=3
    )
    assert chat.usage
    assert chat.usage.completion_tokens <= 3


def test_every_prompt_of_one_request_is_answered_in_its_place(site: Site) -> None:
    alone = [site.ask(ONE, prompt, 3).json()["choices"][0]["text"] for prompt in PROMPTS[:2]]
    body = asked(ONE, [], 3) | {"prompt": [list(prompt) for prompt in PROMPTS[:2] * 3]}
    together = httpx2.post(f"{site.url}/v1/completions", json=body, timeout=TIMEOUT_S)
    assert together.status_code == 200, together.text
    assert [choice["text"] for choice in together.json()["choices"]] == alone * 3


def test_as_many_prompts_as_a_replica_has_room_for_are_answered_and_one_more_is_refused_for_good(site: Site) -> None:
    statuses = []
    for prompts in (8, 9):  # max_num_seqs is 4, and as many may wait
        body = asked(ONE, [], 1) | {"prompt": [list(PROMPTS[0])] * prompts}
        answer = httpx2.post(f"{site.url}/v1/completions", json=body, timeout=TIMEOUT_S)
        statuses.append(answer.status_code)
    assert statuses == [200, 400]
    assert answer.json()["error"]["param"] == "prompt"


def test_a_cluster_on_which_serve_runs_is_not_touched_by_another_endpoint(site: Site, folder: Path) -> None:
    other = endpoint_from({"model": str(folder)}, Listening(port=free_port()))
    with pytest.raises(ConfigError, match="Ray Serve runs on this cluster already"), open_endpoint(other):
        pass
    assert site.answers(ONE)


def test_what_serve_would_start_again_is_not_stopped_and_the_endpoint_goes_on(site: Site) -> None:
    for stop in (stop_cluster, force_cluster):
        with pytest.raises(ConfigError, match="an endpoint runs on this cluster"):
            stop()
    assert site.answers(ONE)


def test_two_models_have_their_sessions_with_one_device(site: Site) -> None:
    state = site.kv()
    [device] = [owner for owner in state["owners"] if owner["name"] == site.device]
    assert sorted(each["pid"] for each in device["sessions"] if each["state"] == "live") == sorted(
        site.pid(model) for model in (ONE, TWO)
    )


def test_the_memory_of_a_client_that_leaves_is_given_back_and_nothing_is_computed_for_it(site: Site) -> None:
    before = site.word(ONE)["generated_tokens"]
    body = asked(ONE, PROMPTS[2], LONG, stream=True, n=8)  # seconds, on a busy machine too
    with httpx2.stream("POST", f"{site.url}/v1/completions", json=body, timeout=TIMEOUT_S) as response:
        lines = response.iter_lines()  # a name of its own: without one it is closed at once, and the client has left
        first = next(lines)
        assert (response.status_code, '"error"' in first) == (200, False), first
        assert not site.is_idle
    eventually(lambda: site.is_idle, "its memory is back")
    word = eventually(lambda: idle(site.word(ONE)), "its replica computes for nobody")
    assert word["generated_tokens"] - before < 8 * LONG


def idle(word: dict[str, Any]) -> dict[str, Any] | None:
    return None if word["running"] or word["waiting"] else word


def test_a_killed_replica_ends_its_streams_with_an_error_and_no_others(site: Site) -> None:
    hurt, spared = site.stream(ONE), site.stream(TWO)
    kill_and_wait(site.pid(ONE))
    *_, error, last = hurt.end()
    assert '"code":"replica_lost"' in error
    assert "the replica that computed this is lost: its process ended, and nobody knows why" in error
    assert last == ENDED
    assert spared.is_whole
    eventually(lambda: site.answers(ONE), "another replica is there")


def test_streams_go_on_when_their_device_dies(site: Site) -> None:
    undisturbed = site.ask(ONE, PROMPTS[3], LONG).json()["choices"][0]["text"]
    stream = site.stream(ONE, PROMPTS[3])
    kill_and_wait(ray.get(site.device_actor().address.remote(), timeout=TIMEOUT_S).pid)
    assert stream.is_whole
    assert said_by(stream) == undisturbed
    eventually(lambda: site.answers(TWO), "the device serves again")


def test_an_endpoint_that_is_told_to_end_finishes_what_is_under_way_and_refuses_what_is_new(ending_site: Site) -> None:
    stream = ending_site.stream(ONE)
    os.kill(ending_site.run.pid, signal.SIGTERM)
    refused = eventually(lambda: refusal(ending_site.ask(TWO, PROMPTS[1], 1)), "new requests are refused")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert int(refused.headers["retry-after"]) >= 1
    assert stream.is_whole
    assert ending_site.run.wait(TIMEOUT_S) == 130
    assert serve.status().applications == {}


def said_by(stream: Stream) -> str:
    chunks = [json.loads(event.removeprefix("data: ")) for event in stream.end() if event != ENDED]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
