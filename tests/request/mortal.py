"""A worker in this process that can die: from then on the device takes its process for dead, and it does nothing."""

from __future__ import annotations

import os
from typing import Any

from kvcluster.ids import new_session
from kvcluster.services.completion import Completion, CompletionRequest
from kvcluster.services.direct import DirectTransport
from kvcluster.services.port import DevicePort
from kvcluster.services.progress_page import ProgressPage, mapped
from kvcluster.services.request import RequestService, RequestSettings, open_request_service
from kvcluster.wire.socket import Hello
from tests.request.world import World


class Mortal:
    """Its service stays out of the world's, who closes only those that live."""

    def __init__(self, world: World, **settings: Any) -> None:
        self._world = world
        self._owner = world.device.service
        self.session = new_session()
        welcome = self._owner.hello(Hello(session=self.session), pid=os.getpid())
        transport = DirectTransport(self._owner, self.session)
        self.port = DevicePort(self.session, welcome, world.device.driver, transport)
        [handed] = self._owner.redeem(self.session, 0).handles
        assert handed.fd is not None
        self.port.progress = ProgressPage(mapped(handed.fd))
        os.close(handed.fd)
        self.pages = world.pages.open_port() if world.pages else None
        self.service: RequestService = open_request_service(
            world.model,
            world.tokenizer,
            self.port,
            RequestSettings(layout=world.layout, **settings),
            pages=self.pages,
            clock=world.clock,
        )

    def submit(self, requests: dict[int, CompletionRequest]) -> None:
        for key, request in requests.items():
            self.service.submit(key, request)

    def step(self, count: int) -> None:
        for _ in range(count):
            self.service.step()

    def die(self) -> None:
        """Of a kill: the page stays as it is, and the process's mappings go with it."""
        self.orphan()
        self._owner.gone(self.session)
        if self.pages is not None and self._world.pages is not None:
            self._world.pages.service.gone(self.pages.session)
        for memory in self.port.memories():
            memory.range.close()

    def orphan(self) -> None:
        """Its connection ends, and its process may live."""
        self._owner.disconnected(self.session)

    def finish(self) -> dict[int, Completion]:
        """Its answers, once all of them are there."""
        [results] = self._world.finish([self.service])
        assert all(isinstance(result, Completion) for result in results.values())
        return {key: result for key, result in results.items() if isinstance(result, Completion)}

    def close(self) -> None:
        self.service.close()
        self.port.close()
