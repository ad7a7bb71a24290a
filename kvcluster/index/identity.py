"""What two sequences must have in common, beside their tokens, for their K and V to be the same, and to be shown.

The tenant and its salt say who may know of a prefix; the fingerprint of the weights (not a model's name, which says
nothing about them), the adapter's digest, the element type and the layout say what the bytes are. All of them make the
root of a chain of digests, each as its name, its length and its bytes: no content of one field can look like another's,
so an adapter that is named like somebody's salt opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from hashlib import sha256

_LABEL = b"kvcluster prefix 1"


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """`model` and `adapter` are digests; `adapter` is empty where there is none. `layout` says how the bytes lie."""

    model: str
    dtype: str
    layout: str
    tenant: str = ""
    salt: str = ""
    adapter: str = ""

    @property
    def root(self) -> bytes:
        """32 bytes, the beginning of every chain of this identity."""
        digest = sha256(_LABEL)
        for field in fields(self):
            content = getattr(self, field.name).encode("utf-8", "surrogatepass")
            digest.update(b"%s %d " % (field.name.encode(), len(content)) + content)
        return digest.digest()

    def salted(self, salt: str) -> CacheIdentity:
        """The same for requests of this `cache_salt`."""
        return replace(self, salt=salt)


def root_for(tenant: str, root: bytes) -> bytes:
    """Where an owner of memory looks up what this tenant names `root`: no other tenant reaches it, whatever it names.

    Empty where the root is: nothing is found there.
    """
    if not root:
        return b""
    return sha256(_LABEL + b" of %d " % len(root) + root + tenant.encode("utf-8", "surrogatepass")).digest()
