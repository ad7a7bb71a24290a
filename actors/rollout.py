"""An application that Ray Serve rolls out: waited for until it runs, or until it is clear that it never will, and why.

Serve starts a replica three times, and then says so in pages of traceback. An error of ours that no second try can
mend (a setting, a model) ends the waiting at once, and is told in its own sentence. Ray 2.60's words.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.schema import ApplicationStatus, ProxyStatus

from kvcluster.config import ConfigError

POLL_S = 0.2
_SERVING = (ProxyStatus.HEALTHY, ProxyStatus.DRAINING)  # the latter on a node that needs none any more
PROXIES_S = 120.0  # after the models are ready; Serve gives each that it makes 5 s more than the one before
_OWN_ERROR = re.compile(r"^(?:kvcluster|actors)\.[\w.]+: (.+)", re.MULTILINE)
_FOR_GOOD = re.compile(
    r"^kvcluster\.[\w.]+\.(?:ConfigError|ModelNotFound|UnsupportedModel|DeviceMissing): .", re.MULTILINE
)
_FAILED = frozenset({ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY})


def wait_until_running(client: Any, name: str) -> None:
    """Return when the application answers over HTTP. `client` is Serve's own.

    Raises:
        ConfigError: it has failed, and why, in one sentence.
    """
    while (state := _state(name)) is not ApplicationStatus.RUNNING:
        if state in _FAILED:
            raise ConfigError(reason_of_failure(_said(name)))
        time.sleep(POLL_S)
    _wait_for_proxies(client)


def _wait_for_proxies(client: Any) -> None:
    """Return when all of Serve's HTTP proxies answer. One that Serve has given up is waited for as its successor.

    Raises:
        ConfigError: they do not.
    """
    deadline = time.monotonic() + PROXIES_S
    while time.monotonic() < deadline:
        with suppress(RayError, TimeoutError):
            client.wait_for_proxies_serving(wait_for_applications_running=True)
            if all(state in _SERVING for state in serve.status().proxies.values()):
                return
        time.sleep(POLL_S)
    raise ConfigError(
        f"Ray Serve's HTTP proxy does not answer, more than {PROXIES_S:.0f} s after the models were ready: see its log "
        f"(serve/proxy_*.log in the folder of Ray's logs), or start again when the machine is less busy"
    )


def _state(name: str) -> ApplicationStatus:
    """How the application stands. One whose replica says what is wrong is not tried again: it has failed."""
    application = serve.status().applications.get(name)
    if application is None:
        return ApplicationStatus.NOT_STARTED
    if any(_FOR_GOOD.search(text) for text in _said(name)):
        return ApplicationStatus.DEPLOY_FAILED
    return application.status


def _said(name: str) -> list[str]:
    """What Serve says of the application, and of each of its deployments; pages, where a replica failed."""
    application = serve.status().applications.get(name)
    if application is None:
        return ["it was taken off the cluster meanwhile"]
    return [application.message, *(each.message for each in application.deployments.values())]


def reason_of_failure(said: Sequence[str]) -> str:
    """One sentence of what Serve says: that of our own error, where there is one."""
    own = [match for text in said for match in _OWN_ERROR.findall(text)]
    if own:
        return str(own[-1])
    lines = [line.strip() for text in said for line in text.splitlines() if line.strip()]
    return f"Ray Serve does not start the application: {lines[-1] if lines else 'it does not say why'}"
