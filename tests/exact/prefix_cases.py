"""Which models share in which layout, and what arithmetic says of it, written a second time and by hand.

model        bytes of a token: token-major, seq-major, head-major
llama        1,280  320  160     no power of two; a granule of 4 KiB holds 3.2, 12.8, 25.6 tokens
even         1,024  256  128     divides the granule
qwen3        1,152  288   96     three K heads: 3.6, 14.2, 42.7
mistral      896    224  224     one K head, no window: 4.6, 18.3
sliding      all layers have a window: nothing can be shared
gemma3       640    320  160     of its one full layer: 6.4, 12.8, 25.6; two layers slide
wide         6,400  1,600  800   64 KiB holds 10.2, 41, 81.9
wide_gemma3  3,200  1,600  800   of its one full layer: 20.5, 41, 81.9
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from kvcluster.geometry.layout import Layout
from kvcluster.testing.models import FAMILIES, WINDOW_TOKENS
from kvcluster.units import KIB
from tests.exact.prefix_play import BEHIND, FIRST_SAID, SAID
from tests.exact.prefix_site import Setting

SLIDING_LAYERS = 2  # of gemma3
THOROUGH = ("llama", "gemma3")  # one without rings and one with them: every remainder of a granule in each layout
_GEMMA3: dict[str, Any] = {
    "layers": 3,
    "kv_heads": 2,
    "extra": FAMILIES["gemma3"].extra | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A model to be made: what differs from its family, and in how many layers it sees every token."""

    family: str
    full_layers: int = 2
    changes: Mapping[str, Any] = field(default_factory=dict)

    def stride_bytes(self, layout: Layout, layers: int) -> int:
        """Bytes of a token in a fragment of so many layers."""
        shape = FAMILIES[self.family]
        heads, dim = self.changes.get("kv_heads", shape.kv_heads), self.changes.get("head_dim", shape.head_dim)
        vectors = {Layout.TOKEN_MAJOR: 2 * layers * heads, Layout.SEQ_MAJOR: heads, Layout.HEAD_MAJOR: 1}
        return int(vectors[layout] * dim * 4)


KINDS = MappingProxyType(
    {
        "llama": Kind("llama", changes={"head_dim": 40}),
        "even": Kind("llama", changes={"head_dim": 32}),
        "qwen3": Kind("qwen3", changes={"heads": 6, "kv_heads": 3}),
        "mistral": Kind("mistral", changes={"head_dim": 56, "kv_heads": 1, "extra": {"sliding_window": None}}),
        "sliding": Kind("mistral", full_layers=0),
        "gemma3": Kind("gemma3", 1, _GEMMA3 | {"head_dim": 40}),
        "wide": Kind("llama", changes={"head_dim": 200}),
        "wide_gemma3": Kind("gemma3", 1, _GEMMA3 | {"head_dim": 200}),
    }
)


@dataclass(frozen=True, slots=True)
class Case:
    """A model in a layout, and how long the longest prompt of an owner is. Rings are made for `chunk_tokens`."""

    kind: str
    layout: Layout
    longest: int
    granule_bytes: int = 4 * KIB
    chunk_tokens: int = 16

    def __str__(self) -> str:
        return f"{self.kind}-{self.layout}-{self.granule_bytes // KIB}KiB"

    @property
    def setting(self) -> Setting:
        most = self.longest + BEHIND + FIRST_SAID + 4 + SAID
        return Setting(self.layout.value, self.granule_bytes, self.chunk_tokens, most)

    @property
    def stride_bytes(self) -> int:
        """Of the layers that see every token."""
        kind = KINDS[self.kind]
        return kind.stride_bytes(self.layout, kind.full_layers)

    @property
    def has_rings(self) -> bool:
        return KINDS[self.kind].family == "gemma3"

    @property
    def ring_bytes(self) -> int:
        """Of a fragment of the two layers that see a window."""
        row_bytes = KINDS[self.kind].stride_bytes(self.layout, SLIDING_LAYERS)
        held = (WINDOW_TOKENS - 1 + self.chunk_tokens) * row_bytes
        return -(-held // self.granule_bytes) * self.granule_bytes

    @property
    def laps(self) -> float:
        """How often the longest text goes round its rings."""
        return self.setting.max_tokens * KINDS[self.kind].stride_bytes(self.layout, SLIDING_LAYERS) / self.ring_bytes

    @property
    def granule_tokens(self) -> int:
        return -(-self.granule_bytes // self.stride_bytes) if self.stride_bytes else 1

    @property
    def lengths(self) -> list[int]:
        """Those of the owners' prompts: over the last two granules where those are short, else round an edge."""
        most = 2 * self.granule_tokens if self.granule_tokens < 16 else 0
        last = range(max(1, self.longest - max(15, most)), self.longest + 1)
        return [tokens for tokens in last if self._is_tried(tokens) or self.granule_tokens >= 16]

    @property
    def matches(self) -> list[int]:
        """How many tokens of the longest prompt agree."""
        return [tokens for tokens in range(1, self.longest + 1) if self._is_tried(tokens)]

    def _is_tried(self, tokens: int) -> bool:
        """Every number where granules are short and the case is among the first of its kind, else round each edge."""
        if self.kind in THOROUGH and self.granule_tokens < 16:
            return True
        near = 3 if self.kind in THOROUGH else 1
        return (tokens + near) % self.granule_tokens <= 2 * near or tokens == self.longest

    def told(self) -> dict[str, Any]:
        """What the process is told."""
        return {
            "setting": asdict(self.setting),
            "longest": self.longest,
            "lengths": self.lengths,
            "matches": self.matches,
        }

    def begins(self, match: int) -> int:
        """The first token that is computed by who has the whole granules of `match` tokens."""
        return min(match - 1, self.granules(match) * self.granule_bytes // self.stride_bytes)

    def refusal(self, tokens: int, joined: int) -> str | None:
        """Why `tokens` tokens cannot be published by who has joined a prefix of `joined` and computed no more."""
        if not KINDS[self.kind].full_layers:
            return "sliding-only"
        if not self.granules(tokens):
            return "smaller-than-a-granule"
        if self.has_rings:
            row_bytes = KINDS[self.kind].stride_bytes(self.layout, SLIDING_LAYERS)
            since = tokens - max(0, self.begins(tokens) - WINDOW_TOKENS)
            return "no-boundary" if since * row_bytes > self.ring_bytes else None
        return "smaller-than-a-granule" if joined and self.granules(tokens) == self.granules(joined) else None

    def granules(self, tokens: int) -> int:
        """Whole ones of a fragment."""
        return tokens * self.stride_bytes // self.granule_bytes

    def joins(self, published: int, match: int) -> int | str:
        """What a join says: with rings there is nothing but the prefix's own boundary."""
        if not self.granules(match):
            return "smaller-than-a-granule"
        if not self.has_rings:
            return self.begins(match)
        return self.begins(published) if self._shares_all(published, match) else "no-boundary"

    def _shares_all(self, published: int, match: int) -> bool:
        return self.granules(published) == self.granules(match) and match > self.begins(published)


T, S, H = Layout.TOKEN_MAJOR, Layout.SEQ_MAJOR, Layout.HEAD_MAJOR

LOCAL = (
    Case("llama", T, 52),
    Case("llama", S, 66),
    Case("llama", H, 80),
    Case("qwen3", S, 60),
    Case("even", T, 48),
    Case("mistral", T, 48),
    Case("sliding", T, 60),
    Case("gemma3", T, 80),
    Case("gemma3", S, 80, chunk_tokens=7),
    Case("gemma3", H, 92, chunk_tokens=15),
    Case("wide", T, 45, 64 * KIB),
    Case("wide", S, 90, 64 * KIB, chunk_tokens=32),
    Case("wide", H, 168, 64 * KIB, chunk_tokens=32),
    Case("wide_gemma3", T, 64, 64 * KIB, chunk_tokens=11),
    Case("wide_gemma3", H, 172, 64 * KIB, chunk_tokens=9),
)
ATTACHED = (Case("llama", T, 35), Case("qwen3", S, 35), Case("gemma3", T, 55))
