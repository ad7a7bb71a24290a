"""A Ray Serve deployment of your own class, whose KV cache lies in the memory of a device actor.

Two replicas share one device: what one does not need the other can have, and what neither can have is a 429 with the
seconds to wait. Run it with `python examples/04_own_deployment.py`: it starts a Ray of its own, asks, and ends; with
RAY_ADDRESS it joins that cluster. It needs `pip install "ray[serve]"`, and no GPU.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ray
import torch
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from transformers import AutoModelForCausalLM, AutoTokenizer

import kvcluster
from actors.proxies import open_session
from kvcluster.config import settings_from
from kvcluster.testing.models import make_model

MAX_TOKENS = 256  # of 4 KiB each: one text of this length fills the device


@serve.deployment(num_replicas=2, max_ongoing_requests=1)  # a session is used by one request at a time
class Writer:
    """Answers `/?text=...&tokens=...` with the text as a model goes on with it."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        settings = settings_from({"model": folder, "devices": "host:4", "device_memory": "1MiB", "granule": "4KiB"})
        [name] = settings.device_names
        node = ray.get_runtime_context().get_node_id()
        self._port = open_session(name, node, settings)  # finds the device on this node, or makes it
        self._cache = kvcluster.KVCache(self._port, self._model.config, max_tokens=MAX_TOKENS)

    async def __call__(self, request: Request) -> Response:  # async: it runs on one thread, as the session asks for
        text, tokens = request.query_params["text"], int(request.query_params["tokens"])
        ids = self._tokenizer(text, return_tensors="pt")["input_ids"]
        try:
            said = self._model.generate(
                ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, cache=self._cache
            )
            held = self._cache.committed_bytes
            return JSONResponse({"text": self._tokenizer.decode(said[0]), "held_bytes": held})
        except kvcluster.OutOfBudget as refusal:
            wait = {"Retry-After": str(max(1, round(refusal.retry_after_s)))}
            return JSONResponse({"error": str(refusal)}, status_code=429, headers=wait)
        except kvcluster.NeverFits as refusal:
            return JSONResponse({"error": str(refusal)}, status_code=400)
        finally:
            self._cache.reset()  # its memory is the device's again

    # Nothing to do at the end: when this process has ended, all that it had is the device's again.


def asked(url: str, text: str, tokens: int) -> str:
    """Status, and the bytes that were held or why not."""
    query = urllib.parse.urlencode({"text": text, "tokens": tokens})
    try:
        with urllib.request.urlopen(f"{url}?{query}", timeout=120) as answer:
            return f"{answer.status}, {json.load(answer)['held_bytes']:,} bytes held"
    except urllib.error.HTTPError as refused:
        return f"{refused.code}, retry after {refused.headers['Retry-After']} s: {json.load(refused)['error']}"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), "llama", kv_heads=4, head_dim=64)
        ray.init(os.environ.get("RAY_ADDRESS", "local"), log_to_driver=False, logging_level="ERROR")
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(Writer.bind(folder), name="writer")
        url = f"http://127.0.0.1:{port}/"
        print("alone:", asked(url, "A list is", 200), flush=True)
        with ThreadPoolExecutor() as both:  # more than there is: one is refused, or both, where each has half
            for answer in both.map(lambda text: asked(url, text, 200), ["A tuple is", "A file is"]):
                print("two at once:", answer, flush=True)
        print("after them:", asked(url, "A set is", 200), flush=True)
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
