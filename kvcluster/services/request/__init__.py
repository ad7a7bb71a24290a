"""The continuous-batching loop of a request actor, without Ray: one model, one device, many requests.

    service.py       the loop: a step boundary, then one model step
    opening.py       a service put together
    inbox.py         what other threads say: new requests, and cancels
    outbox.py        what is said of requests, until it is taken
    intake.py        a request checked against the model, or its refusal
    door.py          whether one more may wait; pacing.py: when those may come back that were sent away
    order.py         one text that is asked for; choices.py gathers those of a request
    generation.py    one text under way: its tokens and its memory (text.py: what they say)
    place.py         where memory comes from: a device, and host pages beside it
    shared.py        what the parts of one place share
    roster.py        who waits and who runs, oldest first
    schedule.py      which tokens the next step computes
    choosing.py      the next token of each text, and how likely it was
    margin.py        how much memory to ask for, and when
    targets.py       where a text shares what it computed, and who waits for it
    publications.py  memories that are being shared, a frame a step
    wait_die.py      what a refused growth leads to
    moves.py         from the device to host pages with all rows, and back
    crew.py          the beams of one request; beams.py: what becomes of them after a step
    desk.py          asks the owner of the memory, one frame at a time
    answers.py       deals with what it says

Nothing here knows Ray, sockets or drivers: memory comes through a `services.kv_port.KvPort`.
"""

from kvcluster.services.request.opening import open_request_service
from kvcluster.services.request.service import RequestService
from kvcluster.services.request.settings import RequestSettings
from kvcluster.services.request.statistics import RequestStatistics

__all__ = ["RequestService", "RequestSettings", "RequestStatistics", "open_request_service"]
