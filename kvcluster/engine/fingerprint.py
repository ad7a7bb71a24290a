"""What a model's K and V depend on, as one digest: its weights and its configuration, never its name.

Two folders with the same content are the same model, wherever they lie; one changed byte is another. Files are hashed
side by side, because hashing releases the interpreter's lock: 1.1 s a GiB on one core and half of it on two, while
reading the weights takes longer.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest, sha256
from pathlib import Path

from kvcluster.engine.reading import reading

PARTS = ("config.json", "*.safetensors", "*.bin")


def fingerprint_of(path: str | Path) -> str:
    """64 hex digits for the model in the folder `path`.

    Raises:
        ModelNotFound: a file of it cannot be read.
    """
    with reading(path), ThreadPoolExecutor() as threads:
        files = sorted(file for part in PARTS for file in Path(path).glob(part))
        digests = list(threads.map(_digest, files))
    whole = sha256()
    for file, digest in zip(files, digests, strict=True):
        whole.update(f"{file.name} {digest}\n".encode())
    return whole.hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()
