"""What Ray, Serve and gRPC raise where a replica that was asked is lost, told apart from every other error.

A call goes as Ray's objects or by gRPC, as its handle says or the cluster (RAY_SERVE_USE_GRPC_BY_DEFAULT), and each has
words of its own for a replica that is gone; so whoever asks one catches `MAY_BE_LOSS` and looks here. Serve (2.60) also
hands a replica's own CancelledError over as it is: whoever waits for an answer must not take that for a cancel of his
own.
"""

from __future__ import annotations

import asyncio

from grpc import StatusCode
from grpc.aio import AioRpcError
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from actors.causes import cause_of

MAY_BE_LOSS = (RayError, RayServeException, AioRpcError, RuntimeError, asyncio.CancelledError)
_LOST = (StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.INTERNAL, StatusCode.DEADLINE_EXCEEDED)
_BROKEN_OFF = tuple(f"Unexpected error ({code})" for code in _LOST)  # Serve's words (2.60) for what was never taken


def loss_of(error: BaseException) -> str | None:
    """Why the replica that was asked is lost. None where it is not, by the error's kind or code: what it raised itself,
    or a message that is too large, another replica would fail of too; and a cancel may be one's own.
    """
    match error:
        case RayTaskError():
            return None
        case RayError() | RayServeException():
            return cause_of(error)
        case AioRpcError() if error.code() in _LOST:
            return error.details() or str(error.code())
        case RuntimeError() if str(error).startswith(_BROKEN_OFF):
            return "the call broke off before it was taken"
        case asyncio.CancelledError() if not is_cancelled_here():
            return "it left the request off"
    return None


def is_cancelled_here() -> bool:
    """Whether somebody cancelled the task that runs."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
