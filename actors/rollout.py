"""An application that Ray Serve rolls out: waited for until it runs, or until it is clear that it never will, and why.

Serve starts a replica three times, and then says so in pages of traceback. An error of ours that no second try can
mend (a setting, a model) ends the waiting at once, and is told in its own sentence. A replica that finds no place, or
a model that takes long to load, is waited for without an end, and each minute that is told. Ray 2.60's words.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatus, ProxyStatus

from actors.causes import cause_of
from kvcluster.config import ConfigError

POLL_S = 0.2
TELL_S = 60.0
SILENT_S = 60.0  # of Serve's controller, which Ray starts again where it dies
PROXIES_S = 120.0  # after the models are ready; Serve gives each that it makes 5 s more than the one before
_ANSWERING = (ProxyStatus.HEALTHY, ProxyStatus.DRAINING)  # the latter on a node that needs none any more
_NO_ANSWER = (RayError, RayServeException, TimeoutError)
_OWN_ERROR = re.compile(r"^(?:kvcluster|actors)\.[\w.]+: (.+)", re.MULTILINE)
_FOR_GOOD = re.compile(
    r"^kvcluster\.[\w.]+\.(?:ConfigError|ModelNotFound|UnsupportedModel|DeviceMissing): .", re.MULTILINE
)
_FAILED = frozenset({ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY})


class _Watch:
    """What Serve says of one application, and since when it has said nothing new."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._was_there = False
        self._heard = self._told = time.monotonic()

    def look(self) -> ApplicationStatusOverview | None:
        """None where there is none yet, or Serve does not answer now.

        Raises:
            ConfigError: there is none any more, or Serve has not answered for `SILENT_S`.
        """
        try:
            application = serve.status().applications.get(self._name)
        except _NO_ANSWER as error:
            if time.monotonic() - self._heard >= SILENT_S:
                raise ConfigError(f"Ray Serve does not answer any more: {cause_of(error)}") from error
            return None
        if application is None and self._was_there:
            raise ConfigError("Ray Serve does not start the application: it was taken off the cluster meanwhile")
        self._was_there = application is not None
        self._heard = time.monotonic()
        return application

    def is_long(self) -> bool:
        """Once each `TELL_S`."""
        if time.monotonic() - self._told < TELL_S:
            return False
        self._told = time.monotonic()
        return True


def wait_until_running(client: Any, name: str, *, tell: Callable[[str], object]) -> None:
    """Return when the application answers over HTTP. `client` is Serve's own; `tell` hears what takes long.

    Raises:
        ConfigError: it has failed, and why, in one sentence.
    """
    watch = _Watch(name)
    while not (application := watch.look()) or application.status is not ApplicationStatus.RUNNING:
        if application:
            _check_goes_on(application)
            if watch.is_long():
                tell(what_is_missing(application))
        time.sleep(POLL_S)
    _wait_for_proxies(client)


def _check_goes_on(application: ApplicationStatusOverview) -> None:
    """Raises ConfigError. One whose replica says what is wrong is not tried again: it has failed."""
    said = _said(application)
    if application.status in _FAILED or any(_FOR_GOOD.search(text) for text in said):
        raise ConfigError(reason_of_failure(said))


def _wait_for_proxies(client: Any) -> None:
    """Return when one of Serve's HTTP proxies answers, and all that do not end. One that Serve has given up is waited
    for as its successor.

    Raises:
        ConfigError: they do not.
    """
    deadline = time.monotonic() + PROXIES_S
    while not _are_answering(client):
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"Ray Serve's HTTP proxy does not answer, more than {PROXIES_S:.0f} s after the models were ready: see "
                f"its log (serve/proxy_*.log in the folder of Ray's logs), or start again when the machine is less busy"
            )
        time.sleep(POLL_S)


def _are_answering(client: Any) -> bool:
    try:
        client.wait_for_proxies_serving(wait_for_applications_running=True)
        states = serve.status().proxies.values()
    except _NO_ANSWER:
        return False
    return ProxyStatus.HEALTHY in states and all(state in _ANSWERING for state in states)


def _said(application: ApplicationStatusOverview) -> list[str]:
    """What Serve says of it, and of each of its deployments; pages, where a replica failed."""
    return [application.message, *(each.message for each in application.deployments.values())]


def what_is_missing(application: ApplicationStatusOverview) -> str:
    """One sentence: each deployment that is not ready, with what Serve says of it."""
    missing = [
        f"{name}: {next(iter(each.message.splitlines()), each.status.value)}"
        for name, each in application.deployments.items()
        if each.status is not DeploymentStatus.HEALTHY
    ]
    return f"still waiting for {'; '.join(missing) or 'Ray Serve, which prepares the application'}"


def reason_of_failure(said: Sequence[str]) -> str:
    """One sentence of what Serve says: that of our own error, where there is one."""
    own = [match for text in said for match in _OWN_ERROR.findall(text)]
    if own:
        return str(own[-1])
    lines = [line.strip() for text in said for line in text.splitlines() if line.strip()]
    return f"Ray Serve does not start the application: {lines[-1] if lines else 'it does not say why'}"
