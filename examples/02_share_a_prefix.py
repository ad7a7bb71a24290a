"""Two requests read one copy of their common beginning, and nobody can write it any more.

Needs no GPU, no Ray and no model: run it with `python examples/02_share_a_prefix.py`.
"""

from __future__ import annotations

import torch

import kvcluster


def main() -> None:
    geometry = kvcluster.KvGeometry.uniform(layers=2, kv_heads=1, head_dim=16, element_bytes=4)
    with kvcluster.open_device("host", memory="64MiB") as device:
        owner = device.open(geometry, max_tokens=4_096)
        owner.commit(1_000, owner.grant(1_000))
        owner.views(torch.float32).k[1][0, :1_000] = torch.arange(1_000.0)[:, None]
        print(f"the owner pays for {owner.committed_bytes:,} bytes")

        prefix = owner.publish(1_000)
        print(f"published: it pays for {owner.committed_bytes:,} and shares {owner.shared_bytes:,}")

        other = device.open(geometry, max_tokens=4_096)
        start = other.join(prefix, 1_000)
        rows = other.views(torch.float32).k[1][0, :start, 0]
        print(f"joined: {start} of 1,000 tokens are there, as written: {torch.equal(rows, torch.arange(float(start)))}")

        other.commit(1_200, other.grant(1_200))
        print(f"the other one pays for {other.committed_bytes:,} bytes of its 1,200 tokens")

        owner.close()
        print(f"the owner is gone; the device holds {device.audit().accounts}")


if __name__ == "__main__":
    main()
