"""What a deployment of a test refuses, remembers and counts before any process is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvcluster.config import ConfigError
from kvcluster.services.completion import CompletionRequest, Refused
from kvcluster.services.workers import WorkerLost
from kvcluster.testing.batches import CountedWorkers, line_of, texts_of
from kvcluster.testing.deployment import Deployment, deployment_settings
from tests.batch.stand_in import EchoWorkers, run_job

NOBODY: Any = None  # simulated nodes, of a deployment that starts nothing


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(deployment_settings(tmp_path, 2, 7), NOBODY, tmp_path, mark="nobody")


def test_devices_are_numbered_from_the_first_and_settings_may_be_any(tmp_path: Path) -> None:
    settings = deployment_settings(tmp_path, 2, 7, device_memory="1MiB")
    assert (settings.devices, settings.device_memory, settings.dtype) == ("host:7,8", "1MiB", "float32")
    with pytest.raises(ConfigError, match="is not a setting"):
        deployment_settings(tmp_path, 1, 1, memory="1MiB")


@pytest.mark.parametrize(
    ("point", "kind", "complaint"),
    [
        ("job.result.written", None, "the process of the test itself"),
        ("client.commit.nowhere", None, "names no failpoint"),
        ("client.commit.mapped", "device", "names no kind of process that passes"),
    ],
)
def test_nothing_is_killed_where_it_cannot_be(
    deployment: Deployment, point: str, kind: str | None, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        deployment.kill_at(point, kind=kind)
    deployment.assert_nothing_lost()  # nothing was armed


@pytest.mark.parametrize("percent", [0, 101])
def test_a_share_of_replies_is_one_of_a_hundred(deployment: Deployment, percent: int) -> None:
    with pytest.raises(ValueError, match="is no passage"):
        deployment.lose_replies(percent)


def test_a_fault_that_never_happened_fails_the_test_unless_it_is_disarmed(deployment: Deployment) -> None:
    deployment.kill_at("client.commit.mapped", 3)
    with pytest.raises(AssertionError, match=r"never passed: client\.commit\.mapped=kill@3"):
        deployment.assert_nothing_lost()
    deployment.disarm()
    deployment.assert_nothing_lost()


def test_replays_and_losses_are_counted_as_the_job_hands_out_and_hears(tmp_path: Path) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text("".join(line_of(str(n), "hello", {"max_tokens": 3}) for n in range(4)))
    counted = CountedWorkers(EchoWorkers(script=[WorkerLost(0, "it was killed", returns=False)]))
    progress = run_job(lines, tmp_path / "out.jsonl", counted)  # type: ignore[arg-type]
    assert (progress.done, counted.replays, counted.losses) == (4, 2, ["it was killed"])
    assert texts_of(tmp_path / "out.jsonl", 4) == ("<hello>",) * 4


class Refusing(EchoWorkers):
    def outcome(self, key: int, request: CompletionRequest) -> Any:
        return Refused(500, "broken", "it is broken")


def test_a_prompt_without_its_one_text_is_named(tmp_path: Path) -> None:
    lines, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines.write_text(line_of("0", (1, 2), {"max_tokens": 3}))
    run_job(lines, results)
    with pytest.raises(AssertionError, match=r"of 2 prompts these were answered: \[0\]"):
        texts_of(results, 2)
    results.write_bytes(2 * results.read_bytes())
    with pytest.raises(AssertionError, match="prompt 0 was answered twice"):
        texts_of(results, 1)
    results.unlink()
    run_job(lines, results, Refusing())
    with pytest.raises(AssertionError, match="it is broken"):
        texts_of(results, 1)
