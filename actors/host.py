"""The host actor (HostKvActor): host pages of one shape, which all workers of its node map and share.

It computes nothing but copies of blocks, so a model's crash cannot take the pages along. How it serves, and how it
ends, is in `actors.serving`; what is done with blocks is in `services.pages`.
"""

from __future__ import annotations

import os
import time

from actors.host_spec import HostAddress, HostSpec
from actors.incarnations import begin_incarnation
from actors.metrics import MemoryTelling
from actors.owners import OwnerKind
from actors.serving import open_serving, stay_on
from actors.supervisor import announce
from kvcluster.engine.dtypes import dtype_named
from kvcluster.failpoints import Failpoint, Passer, arm_with, process_is, reach
from kvcluster.paged.block_pool import BlockPool
from kvcluster.services.pages.service import PageService
from kvcluster.services.pages.statistics import PageStatistics


class HostKvActor:
    """Created by `actors.hosts.find_host`, one a shape and node."""

    def __init__(self, spec: HostSpec) -> None:
        process_is(Passer.PAGES)
        stay_on(spec.node_id)
        file, settings = begin_incarnation(OwnerKind.HOST_PAGES, spec.node_id, spec.settings)
        file.forget_survivors()  # they have other pages than these, and would only keep the file
        shape, dtype = spec.shape, dtype_named(spec.dtype)
        pool = BlockPool(
            spec.blocks, shape.block_size, shape.num_layers, shape.num_kv_heads, shape.head_dim, dtype=dtype
        )
        self._spec = spec
        self._service = PageService(pool, settings, clock=time.monotonic, log=file)
        telling = MemoryTelling(self._service.statistics, incarnation=file.incarnation)
        reach(Failpoint.OWNER_OPENED)
        self._serving = open_serving(settings.name, self._service, file, idle_exit_s=spec.idle_exit_s, chores=[telling])
        announce(OwnerKind.HOST_PAGES, spec.settings.name, epoch=self._service.statistics().epoch)
        reach(Failpoint.OWNER_SERVING)

    def address(self) -> HostAddress:
        """Where clients attach, and what of. Pages that are leaving are gone: see `Serving.attach`."""
        memory = self._spec.settings.memory
        return HostAddress(
            attach=self._serving.attach(),
            pid=os.getpid(),
            name=self._spec.settings.name,
            capacity_bytes=memory.capacity_bytes,
            quotas=memory.quotas,
            file=self._serving.file,
        )

    def frame(self, data: bytes) -> bytes:
        """One frame of a client; see `PageService.frame`."""
        return self._serving.frame(data)

    def statistics(self) -> PageStatistics:
        return self._service.statistics()

    def audit(self) -> PageStatistics:
        """The figures of one moment, after everything was checked to sum. Raises as `Serving.audited`."""
        return self._serving.audited(self._service.audit)

    def arm(self, text: str) -> None:
        """Arm this process's failpoints, for fault tests: see `kvcluster.failpoints.arm_with`. Raises as it does."""
        arm_with(text)

    def leave(self) -> bool:
        """Close, if no session is there; whether it did. See `Serving.leave`."""
        return self._serving.leave()

    def __ray_shutdown__(self) -> None:
        """Ray calls it when this process is told to end (SIGTERM). With sessions it ends as it would by SIGKILL."""
        self._serving.leave()

    def close(self) -> None:
        """Give back what no client has. The actor is of no use afterwards; whoever calls this kills it next."""
        self._serving.close()
