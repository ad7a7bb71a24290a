"""What a model's K and V depend on, as one digest: its weights and its configuration, never its name.

Two folders with the same content are the same model, wherever they lie; one changed byte of the weights or one changed
figure is another. What says only where a configuration came from does not count; everything else in it does, because a
figure that is taken for harmless by mistake would hand out wrong K and V, and one too many only costs a hit.

Files are hashed side by side, because hashing releases the interpreter's lock: 0.75 s of processor time a GiB, in half
of that time where two files lie on two cores. Reading the weights into a model takes longer.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest, sha256
from pathlib import Path

from kvcluster.engine.reading import reading
from kvcluster.engine.refusals import ModelNotFound

WEIGHTS = ("*.safetensors", "*.bin")
NAMES = frozenset({"_name_or_path", "transformers_version"})  # in config.json


def fingerprint_of(path: str | Path) -> str:
    """64 hex digits for the model in the folder `path`.

    Raises:
        ModelNotFound: a file of it cannot be read, or there are no weights.
    """
    with reading(path), ThreadPoolExecutor() as threads:
        files = sorted(file for pattern in WEIGHTS for file in Path(path).glob(pattern))
        if not files:
            raise ModelNotFound(model=str(path), reason="there are no weights in it")
        digests = list(threads.map(_digest, files))
        whole = sha256(_figures(Path(path) / "config.json"))
    for file, digest in zip(files, digests, strict=True):
        whole.update(f"{file.name} {digest}\n".encode())
    return whole.hexdigest()


def _figures(config: Path) -> bytes:
    """One line, however the file is written."""
    figures = {name: value for name, value in json.loads(config.read_bytes()).items() if name not in NAMES}
    return json.dumps(figures, sort_keys=True).encode() + b"\n"


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()
