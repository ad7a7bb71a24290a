"""transformers' own `generate()` on elastic memory: the same tokens, and memory that comes and goes.

Needs no GPU and no Ray; it makes a tiny model with random weights. Run it with
`python examples/03_generate_with_kvcache.py`; your own model takes its place with `from_pretrained("FOLDER")`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import kvcluster
from kvcluster.testing.models import make_model


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, kvcluster.open_device("host", memory="64MiB") as device:
        make_model(Path(folder), "llama")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        prompts = tokenizer(["A list is", "To open a file, call"], return_tensors="pt", padding=True)
        prompts.pop("token_type_ids", None)
        said = {"max_new_tokens": 200, "do_sample": False}
        wanted = model.generate(**prompts, **said)

        with kvcluster.KVCache(device, model.config, max_tokens=2048, batch=6) as cache:
            print(f"an open cache holds {cache.committed_bytes} bytes at {cache.address:#x}")
            same = torch.equal(model.generate(**prompts, **said, cache=cache), wanted)
            print(f"200 tokens for 2 prompts: {cache.committed_bytes:,} bytes; as with DynamicCache: {same}")

            cache.crop(-190)
            print(f"190 tokens taken back: {cache.committed_bytes:,} bytes")

            cache.reset()
            model.generate(**prompts, max_new_tokens=20, num_beams=3, do_sample=False, cache=cache)
            print(f"3 beams each: {cache.batch_size} rows, {cache.committed_bytes:,} bytes at {cache.address:#x}")
        print(f"closed: the device holds {device.audit().committed_bytes} bytes")


if __name__ == "__main__":
    main()
