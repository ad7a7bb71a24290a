"""Prompts of a test as lines of a batch file, and its result file as texts: each answered once, or it says which not.

Beside the job stands a count of what it handed to workers, because how often a prompt was handed out again is nobody
else's figure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcluster.services.workers import Event, WorkerLost


class CountedWorkers:
    """`services.workers.Workers`, and how often a request was handed to one of them again."""

    def __init__(self, workers: Any) -> None:
        self._workers = workers
        self._times = Counter[int]()
        self.losses: list[str] = []  # why each worker was lost

    @property
    def replays(self) -> int:
        return sum(times - 1 for times in self._times.values())

    def submit(self, worker: int, items: Sequence[tuple[int, Any]]) -> None:
        self._times.update(key for key, *_ in items)
        self._workers.submit(worker, items)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        events: Sequence[Event] = self._workers.wait(timeout_s)
        self.losses += [event.reason for event in events if isinstance(event, WorkerLost)]
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workers, name)


def line_of(custom_id: str, prompt: str | Sequence[int], body: dict[str, Any]) -> str:
    asked = {"prompt": prompt if isinstance(prompt, str) else list(prompt), **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": asked}) + "\n"


def texts_of(results: Path, count: int) -> tuple[str, ...]:
    """The text of each prompt, in order. Raises AssertionError where one is missing, there twice, or an error."""
    said: dict[int, str] = {}
    for raw in results.read_bytes().splitlines():
        result = json.loads(raw)
        number, answer = int(result["custom_id"]), result["response"]["body"]
        assert number not in said, f"prompt {number} was answered twice"
        assert "choices" in answer, f"prompt {number} was answered with {answer}"
        said[number] = answer["choices"][0]["text"]
    assert sorted(said) == list(range(count)), f"of {count} prompts these were answered: {sorted(said)}"
    return tuple(said[number] for number in range(count))
