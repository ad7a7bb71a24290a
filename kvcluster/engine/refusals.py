"""Why a model cannot be opened: two errors, each one sentence for the person who named it.

Both are ValueErrors (the caller named the model) and survive pickling, so that a request actor can raise them.
"""

from __future__ import annotations

from kvcluster.errors import KvClusterError


class ModelNotFound(KvClusterError, ValueError):
    """There is no model folder there, or it cannot be read. Nothing was loaded."""

    def __init__(self, *, model: str, reason: str) -> None:
        super().__init__(f"model {model} cannot be opened: {reason}")
        self.model = model
        self.reason = reason


class UnsupportedModel(KvClusterError, ValueError):
    """The model needs something that this engine does not compute. Refused before its weights are loaded."""

    def __init__(self, *, model: str, reason: str) -> None:
        super().__init__(f"model {model} is not supported: {reason}")
        self.model = model
        self.reason = reason
