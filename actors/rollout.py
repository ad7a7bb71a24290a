"""An application that Ray Serve rolls out: waited for until it runs, or until it is clear that it never will, and why.

Serve starts a replica three times, and then says so in pages of traceback. An error of ours that no second try can
mend (a setting, a model) ends the waiting at once, and is told in its own sentence. Ray 2.60's words.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from ray import serve
from ray.serve.schema import ApplicationStatus

from kvcluster.config import ConfigError

POLL_S = 0.2
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
    client.wait_for_proxies_serving(wait_for_applications_running=True)


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
    application = serve.status().applications[name]
    return [application.message, *(each.message for each in application.deployments.values())]


def reason_of_failure(said: Sequence[str]) -> str:
    """One sentence of what Serve says: that of our own error, where there is one."""
    own = [match for text in said for match in _OWN_ERROR.findall(text)]
    if own:
        return str(own[-1])
    lines = [line.strip() for text in said for line in text.splitlines() if line.strip()]
    return f"Ray Serve does not start the application: {lines[-1] if lines else 'it does not say why'}"
