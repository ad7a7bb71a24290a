"""A process whose range cannot wait for the driver's work: prints where it is and how much of it stays mapped."""

from __future__ import annotations

import contextlib

from kvcluster.errors import Quarantined
from kvcluster.ids import WindowRun
from kvcluster.testing.faulty_driver import failing_every
from tests.mapping.world import World


def main() -> None:
    world = World()
    world.mapped(WindowRun(0, 0, 0, 3))
    world.driver.follow(failing_every("synchronize"))
    print(hex(world.range.address), world.range.mapped_bytes)
    for _ in range(2):
        with contextlib.suppress(Quarantined):
            world.range.close()


if __name__ == "__main__":
    main()
