"""The other actor: a model loaded once, and the loop of a request actor, at one device after another."""

from __future__ import annotations

import torch

from actors.devices import Device
from actors.proxies import open_port
from kvcluster.engine.model import open_model
from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.services.completion import Completion, Refused, answers_among
from kvcluster.services.port import DevicePort
from kvcluster.services.request import open_request_service
from tests.actors.answers import requests


class Survivor:
    """`attach`, then `answer`, then `leave`: a session with one device."""

    def __init__(self, folder: str) -> None:
        self._model = open_model(folder, dtype=torch.float32, threads=1)
        self._tokenizer = open_tokenizer(folder)
        self._port: DevicePort

    def attach(self, device: Device) -> str:
        """Returns the session's name."""
        self._port = open_port(device)
        return self._port.session

    def answer(self) -> list[str]:
        """The text of every request, in order; all memory is given back."""
        service = open_request_service(self._model, self._tokenizer, self._port)
        asked = requests()
        for key, request in asked:
            service.submit(key, request)
        answers: dict[int, Completion | Refused] = {}
        while len(answers) < len(asked):
            if not service.step():
                service.wait(0.05)
            answers.update(answers_among(service.said()))
        service.close()
        return [said.text for key, _ in asked if isinstance(said := answers[key], Completion)]

    def leave(self) -> None:
        self._port.close()
