"""To which device a request is sent: where most of its prompt is known, then where most memory is free.

Pure: no clock of its own, no network, no Ray; whoever asks the devices and sends the requests is `actors.router`.

    follower    applies what one device tells, in whatever order it comes
    devices     who is there: its free bytes, and how many requests it has
    pending     what was decided and no device has told yet
    path        how much of a prompt is known, and to whom
    known       all of it together: the decision
"""

from kvcluster.services.routing.follower import Follower
from kvcluster.services.routing.known import Decision, KnownPrefixes

__all__ = ["Decision", "Follower", "KnownPrefixes"]
