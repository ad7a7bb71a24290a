"""What a text's work is called on progress pages: 16 bytes that two texts share only if they come out the same.

Everything that decides a text goes in: the weights, how rows lie, who may know of them, prompt, limits, and how tokens
are drawn. So whoever finds memory under a label may go on with it, whoever began it; a seed that draws nothing (the
most likely token is taken) does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from kvcluster.index.identity import CacheIdentity
from kvcluster.index.token_chain import packed
from kvcluster.services.progress_page import LABEL_BYTES
from kvcluster.services.request.order import Order


def label_of(identity: CacheIdentity, order: Order, stop: tuple[str, ...]) -> bytes:
    """The label of the text; none, where the weights are not known by a digest."""
    if not identity.model:
        return b""
    digest = blake2b(identity.root, digest_size=LABEL_BYTES)
    for part in _parts(order, stop):
        digest.update(b"%d " % len(part) + part)
    return digest.digest()


def _parts(order: Order, stop: tuple[str, ...]) -> Iterator[bytes]:
    params = order.params
    seed = params.seed if params.temperature > 0 else 0
    yield order.packed_prompt
    yield packed(sorted(order.end_ids))
    yield repr((order.max_tokens, order.min_tokens, order.sample, params.temperature, params.top_p, seed)).encode()
    for text in stop:
        yield text.encode("utf-8", "surrogatepass")
