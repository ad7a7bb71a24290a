"""A worker in a process of its own, without Ray: the request loop on memory of the device that its test serves.

Born of a nursery (`tests.nursery`); frames go out on standard output, as those of `tests.services.child`. The model is
in the folder that MODEL_FOLDER names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch

from kvcluster.attach.client import open_attach_client
from kvcluster.driver.host import open_host_driver
from kvcluster.engine.model import open_model
from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.ids import new_session
from kvcluster.services.completion import Completion, CompletionRequest, Telling, answers_among
from kvcluster.services.imports import Imports
from kvcluster.services.own_page import page_memory
from kvcluster.services.port import DevicePort
from kvcluster.services.progress_page import ProgressPage
from kvcluster.services.request import RequestService, RequestSettings, open_request_service
from tests.services.child import PipeTransport

MODEL_FOLDER = "MODEL_FOLDER"


class Way(PipeTransport):
    """To a device that outlives this process."""

    page = None
    is_open = True
    is_fenced = False

    def surrender(self) -> None:
        """Nobody asks for it."""


class Worker:
    def __init__(self, address: str, capacity_bytes: int) -> None:
        self.session = new_session()
        attach = open_attach_client(address, self.session, timeout_s=20)
        driver = open_host_driver(granule_bytes=attach.welcome.granule_bytes, capacity_bytes=capacity_bytes)
        self.port = DevicePort(self.session, attach.welcome, driver, Way(attach, Imports(attach, driver)))
        self.port.progress = ProgressPage(page_memory(attach))
        self._service: RequestService | None = None

    def name(self) -> str:
        return self.session

    def run(self, requests: dict[str, dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any]:
        """All answers, and what the loop counted."""
        folder = os.environ[MODEL_FOLDER]
        model, tokenizer = open_model(folder, dtype=torch.float32, threads=1), open_tokenizer(folder)
        service = open_request_service(model, tokenizer, self.port, RequestSettings(**settings))
        for key, fields in requests.items():
            service.submit(int(key), _request(fields))
        texts: dict[str, list[str]] = {}
        while len(texts) < len(requests):
            if not service.step():
                service.wait(0.05)
            for done, outcome in answers_among(service.said()):
                assert isinstance(outcome, Completion)
                texts[str(done)] = [choice.text for choice in outcome.choices]
        counted = service.statistics()
        service.close()
        return {"texts": texts, "recomputed": counted.recomputed_tokens, "adoptions": counted.adoptions}


def _request(fields: dict[str, Any]) -> CompletionRequest:
    tuples = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return CompletionRequest(**{**fields, **tuples, "tells": Telling(fields["tells"])})


def serve(address: str, capacity_bytes: str, gpu: str) -> None:
    signal.alarm(120)  # whatever a test does, this process ends
    worker = Worker(address.replace("@", "\0"), int(capacity_bytes))
    print(json.dumps("ready"), flush=True)
    while line := sys.stdin.readline():
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, verb)(*arguments)), flush=True)
