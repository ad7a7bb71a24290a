"""What a cluster knows of ours beyond all its actors' ends: the log of births and deaths, and the last order to stop.

It lies in the key-value store of Ray's own control process (`ray.experimental.internal_kv`, where Serve keeps its
state too): it survives every actor and node but the head, ends with the cluster, and leaves no file. Any process that
is connected reads it, whether a supervisor lives or not. What the log means is in `kvcluster.services.chronicle`.
"""

from __future__ import annotations

from uuid import uuid4

import ray
from ray.experimental import internal_kv

from actors.owners import NAMESPACE
from kvcluster.services.chronicle import Told, decode_told, encode_told

_LOG = b"chronicle"
_STOP = b"stop"
_KV_NAMESPACE = NAMESPACE.encode()


def read_log() -> Told:
    """What was told so far."""
    data = _get(_LOG)
    return decode_told(data) if data else Told()


def write_log(told: Told) -> None:
    """In the place of what was told so far. For the supervisor alone."""
    _put(_LOG, encode_told(told))


def note_stop() -> None:
    """Everything of ours on this cluster is to end: no job that runs now replaces a worker that dies from now on."""
    _put(_STOP, uuid4().bytes)


def last_stop() -> bytes:
    """The name of the last stop that was noted; empty where none was. Whoever sees another one than at its own start
    is meant. No clock is in it: those of two nodes differ.
    """
    return _get(_STOP) or b""


def _get(key: bytes) -> bytes | None:
    _connect()
    data: bytes | None = internal_kv._internal_kv_get(key, namespace=_KV_NAMESPACE)
    return data


def _put(key: bytes, data: bytes) -> None:
    _connect()
    internal_kv._internal_kv_put(key, data, namespace=_KV_NAMESPACE)


def _connect() -> None:
    if not internal_kv._internal_kv_initialized():  # another cluster, which this process shut down, took it along
        internal_kv._initialize_internal_kv(ray._private.worker.global_worker.gcs_client)
