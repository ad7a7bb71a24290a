"""Where an endpoint listens: whether it can, and where clients of this machine find it."""

from __future__ import annotations

import errno
import socket

from kvcluster.config import ConfigError
from kvcluster.config_file import Endpoint

_ANYWHERE = frozenset({"0.0.0.0", "::"})


def check_free(host: str, port: int) -> None:
    """Nothing, where somebody may listen there now.

    Raises:
        ConfigError: another one does, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"port {port} of {host} is taken: name another one with --port") from None
            raise ConfigError(f"nobody can listen at port {port} of {host}: {error.strerror or error}") from None


def url_of(endpoint: Endpoint) -> str:
    """Where clients of this machine find it."""
    host = "127.0.0.1" if endpoint.host in _ANYWHERE else endpoint.host
    prefix = str(endpoint.application.get("route_prefix") or "/").rstrip("/")
    return f"http://{f'[{host}]' if ':' in host else host}:{endpoint.port}{prefix}"
