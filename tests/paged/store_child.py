"""Another process at a store's memory: `python -m tests.paged.store_child DESCRIPTOR WRITABLE WRITTEN`.

Reads all blocks, gives itself access to block WRITABLE, writes into block WRITTEN, and prints what it read.
"""

from __future__ import annotations

import sys

from kvcluster.driver.protocol import Access
from kvcluster.paged.store import attach_store
from tests.paged.test_store import BLOCKS, DTYPE, SHAPE


def main() -> None:
    descriptor, writable, written = map(int, sys.argv[1:])
    store = attach_store(descriptor, SHAPE, BLOCKS, DTYPE)
    print(store.tensor[:, 0, 0, 0, 0, 0].tolist(), flush=True)
    store.protect([writable], Access.READ_WRITE)
    store.tensor[written] = 99.0
    store.close()


if __name__ == "__main__":
    main()
