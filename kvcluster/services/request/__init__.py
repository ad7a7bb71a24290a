"""The continuous-batching loop of a request actor, without Ray: one model, one device, many requests.

    service.py      the loop: a step boundary, then one model step
    inbox.py        what other threads say: new requests, and cancels
    intake.py       a request checked against the model, or its refusal
    generation.py   one request under way: its tokens and its memory (text.py: what they say)
    roster.py       who waits and who runs, oldest first
    schedule.py     which tokens the next step computes
    margin.py       how much memory to ask for, and when
    wait_die.py     what a refused growth leads to
    desk.py         asks the device, one frame at a time
    answers.py      deals with what the device says

Nothing here knows Ray, sockets or drivers: memory comes through a `services.port.DevicePort`.
"""

from kvcluster.services.request.service import RequestService, open_request_service
from kvcluster.services.request.settings import RequestSettings
from kvcluster.services.request.statistics import RequestStatistics

__all__ = ["RequestService", "RequestSettings", "RequestStatistics", "open_request_service"]
