"""Ray Serve as this process sees it, without a cluster: it says what the test wants, and notes what it is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


class Script:
    """What is answered, one after the other: an exception is raised. The last one is answered for ever."""

    def __init__(self, answers: Iterable[Any]) -> None:
        self._answers = deque(answers)

    def next(self) -> Any:
        answer = self._answers.popleft() if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


@dataclass(frozen=True, slots=True)
class Results:
    """Of one broadcast."""

    script: Script

    def results(self, timeout_s: float) -> Any:
        assert timeout_s >= 0
        return self.script.next()


@dataclass(frozen=True, slots=True)
class Handle:
    """A deployment's; a broadcast to it is noted by its name."""

    name: str
    script: Script
    told: list[str]

    def broadcast(self, method: str) -> Results:
        self.told.append(f"{self.name}.{method}")
        return Results(self.script)


@dataclass
class StandIn:
    """In the place of `ray.serve`, of `serve_start`, and of the client that this returns."""

    starts: Script = field(default_factory=lambda: Script([None]))
    application: Script = field(default_factory=lambda: Script([None]))  # whether there is one
    gateway: Script = field(default_factory=lambda: Script([[0]]))
    models: dict[str, Script] = field(default_factory=dict)
    deploys: Script = field(default_factory=lambda: Script([None]))
    closes: Script = field(default_factory=lambda: Script([None]))
    statuses: Script = field(default_factory=lambda: Script([None]))
    told: list[str] = field(default_factory=list)

    def start(self, **options: Any) -> StandIn:
        assert set(options) == {"http_options", "proxy_location", "global_logging_config"}
        self.told.append("start")
        self.starts.next()
        return self

    def deploy_apps(self, config: object) -> None:
        self.told.append("deploy")
        self.deploys.next()

    def get_app_handle(self, name: str) -> Handle:
        self.application.next()
        return Handle("gateway", self.gateway, self.told)

    def get_deployment_handle(self, name: str, application: str) -> Handle:
        return Handle(name, self.models.get(name, Script([[None]])), self.told)

    def shutdown(self, timeout_s: float = 30.0) -> None:
        self.told.append("shutdown")
        self.closes.next()

    def status(self) -> Any:
        return self.statuses.next()

    def wait_for_proxies_serving(self, *, wait_for_applications_running: bool) -> None:
        assert wait_for_applications_running
