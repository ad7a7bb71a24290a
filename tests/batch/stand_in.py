"""Workers without models: each echoes its prompt, and dies where the script says."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from kvcluster.services.batch.input import read_lines
from kvcluster.services.batch.job import BatchJob, JobSpec, Progress
from kvcluster.services.batch.opening import open_results
from kvcluster.services.batch.survey import survey
from kvcluster.services.completion import Completion, CompletionRequest, Refused
from kvcluster.services.workers import Event, Finished


def echo(request: CompletionRequest) -> Completion:
    return Completion(text=f"<{request.prompt}>", finish_reason="length", prompt_tokens=2, completion_tokens=3)


class EchoWorkers:
    """Finishes one request a `wait`, the newest first. `script` events are reported before anything is finished."""

    def __init__(self, count: int = 2, script: Sequence[Event] = (), returning: Collection[int] = ()) -> None:
        self.count = count
        self.returning = returning
        self.ready = [worker for worker in range(count) if worker not in returning]
        self.submitted: list[tuple[int, int]] = []  # (worker, key)
        self.most_pending = 0
        self._pending: list[tuple[int, CompletionRequest]] = []
        self.unreported: list[Finished] = []
        self._script = deque(script)

    def submit(self, worker: int, items: Sequence[tuple[int, CompletionRequest]]) -> None:
        assert 0 <= worker < self.count
        self.submitted += [(worker, key) for key, _ in items]
        self._pending += items
        self.most_pending = max(self.most_pending, len(self._pending))

    def wait(self, timeout_s: float) -> Sequence[Event]:
        if self._script:
            return [self._script.popleft()]
        assert self._pending, "the job waits for nothing"
        key, request = self._pending.pop()
        return [Finished(key, self.outcome(key, request))]

    def drain(self, timeout_s: float) -> Sequence[Finished]:
        """What the test put there."""
        return self.unreported

    def outcome(self, key: int, request: CompletionRequest) -> Completion | Refused:
        return echo(request)


def line(custom_id: str, prompt: Any = "hello", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt, **body}}


def write_input(path: Path, *lines: dict[str, Any] | bytes) -> Path:
    """Each line as JSON, or as the bytes that it is."""
    path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
    return path


def run_job(
    input_path: Path,
    output_path: Path,
    workers: EchoWorkers | None = None,
    *,
    lookahead: int = 2,
    retry_failed: bool = False,
    told: list[Progress] | None = None,
    model: str = "echo",
) -> Progress:
    with open_results(output_path, forget_failed=retry_failed) as output:
        total = survey(input_path, output, model=model).total_lines
        spec = JobSpec(model, total, lookahead, created=lambda: 1_700_000_000)
        lines = read_lines(input_path)
        tell = (told if told is not None else []).append
        return BatchJob(lines, output=output, workers=workers or EchoWorkers(), spec=spec, tell=tell).run()


def results(output_path: Path) -> dict[int, dict[str, Any]]:
    """Every output line by its input line's number; no number may stand twice."""
    lines = [json.loads(raw) for raw in output_path.read_bytes().splitlines()]
    found = {int(one["id"].removeprefix("batch_req_")): one for one in lines}
    assert len(found) == len(lines)
    return found
