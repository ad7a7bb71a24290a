"""One sequence's KV cache grows to 131,072 tokens: its address never moves, and nothing is copied.

Needs no GPU, no Ray and no model: run it with `python examples/01_grow.py`.
"""

from __future__ import annotations

import torch

import kvcluster


def main() -> None:
    geometry = kvcluster.KvGeometry.uniform(layers=2, kv_heads=1, head_dim=16, element_bytes=4)
    with kvcluster.open_device("host", memory="64MiB") as device:
        memory = device.open(geometry, max_tokens=131_072)
        print(f"reserved {memory.reserved_bytes:,} bytes of address, holding {device.audit().committed_bytes} bytes")

        memory.commit(200, memory.grant(200))  # no grant, no commit
        views = memory.views(torch.float32)
        views.k[0][:, :200] = torch.arange(200.0)[:, None]
        before = views.k[0].data_ptr()
        print(f"200 tokens: {memory.committed_bytes:,} bytes committed at {memory.address:#x}")

        memory.commit(131_072, memory.grant(131_072))
        views = memory.views(torch.float32)
        same = torch.equal(views.k[0][0, :200, 0], torch.arange(200.0))
        moved = views.k[0].data_ptr() != before
        print(f"131,072 tokens: {memory.committed_bytes:,} bytes; moved: {moved}; the first 200 as written: {same}")

        memory.close()
        print(f"closed: {device.audit().free_bytes:,} bytes free")


if __name__ == "__main__":
    main()
