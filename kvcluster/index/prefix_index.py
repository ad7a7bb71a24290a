"""Which prefixes of a device begin with these tokens: a tree of token blocks, and who covers each.

A prefix has any length. It is listed at each whole block of tokens that it adds to what it is built on, with what
follows its last whole block beside it; so a match is exact to the token. Blocks are found by their chain's digest and
compared by their ids: digests that collide serve nobody else's tokens. A tree is reached through its root alone
(`index.identity`), so whoever has another tenant, model or salt meets another tree.

Beside it stands what somebody is computing or has computed without sharing it: digests alone, a bounded number. It
tells one request at a time that a beginning of its prompt is worth publishing (`claim`).

Memory: some 60 bytes a token of a tree, all of it gone with the prefixes; 2 MiB at most of digests that were seen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from kvcluster.ids import RequestId
from kvcluster.index.events import KnownLog
from kvcluster.index.token_chain import BLOCK_TOKENS, ID_BYTES, blocks_of, common_tokens, digests

MOST_SEEN = 16_384  # digests of blocks that were computed and are not shared
MOST_LOOKED_AT = 16  # children or tails of one block, the newest first


@dataclass(frozen=True, slots=True)
class Match:
    """Prefix `number` begins with the first `tokens` of the tokens that were looked for."""

    number: int
    tokens: int


@dataclass(slots=True, eq=False)
class _Node:
    """One block: its ids, who covers it, and what those that end behind it have beyond it."""

    digest: bytes
    ids: bytes
    parent: _Node | None
    depth: int
    numbers: dict[int, None] = field(default_factory=dict)
    tails: dict[int, bytes] = field(default_factory=dict)
    children: dict[bytes, _Node] = field(default_factory=dict)

    @property
    def is_needed(self) -> bool:
        return bool(self.numbers or self.tails or self.children)

    @property
    def tokens(self) -> int:
        """Up to its end."""
        return self.depth * BLOCK_TOKENS


class PrefixIndex:
    """Of one device. For one thread."""

    def __init__(self) -> None:
        self.log = KnownLog()  # of the blocks in the trees: one is there as long as a listed prefix begins with it
        self._roots: dict[bytes, _Node] = {}
        self._places: dict[int, list[_Node]] = {}
        self._seen: OrderedDict[bytes, RequestId | None] = OrderedDict()  # by whom; None: by several
        self._claims: dict[bytes, RequestId] = {}
        self._claimed_by: dict[RequestId, set[bytes]] = {}

    def __len__(self) -> int:
        """How many prefixes are listed."""
        return len(self._places)

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __iter__(self) -> Iterator[int]:
        """The numbers of those that are listed."""
        return iter(self._places)

    def tokens_of(self, number: int) -> int:
        """How many tokens a listed prefix has."""
        last = self._places[number][-1]
        return last.tokens + len(last.tails[number]) // ID_BYTES

    @property
    def claiming(self) -> Iterable[RequestId]:
        """Requests that are to publish something."""
        return self._claimed_by.keys()

    @property
    def blocks(self) -> int:
        """How many blocks are in the trees."""
        stack, count = list(self._roots.values()), 0
        while stack:
            children = stack.pop().children.values()
            count += len(children)
            stack += children
        return count

    # --- what is shared -------------------------------------------------------------------------------------------

    def insert(self, root: bytes, token_ids: bytes, number: int, *, base_tokens: int = 0) -> bytes:
        """Prefix `number` has these tokens, of which the first `base_tokens` are those of one that it is built on.

        Returns a digest of all of them.

        Raises:
            ValueError: the number is listed already. Nothing changed.
        """
        if number in self._places:
            raise ValueError(f"prefix {number} is listed already")
        node = self._roots.get(root) or self._roots.setdefault(root, _Node(root, b"", None, 0))
        places = self._places[number] = []
        for digest, ids in zip(digests(root, token_ids), blocks_of(token_ids), strict=True):
            node = _child(node, digest, ids)
            if not node.is_needed:  # it was made just now
                self.log.stored(node.digest)
            if node.tokens > base_tokens:
                node.numbers[number] = None
                places.append(node)
        tail = token_ids[node.tokens * ID_BYTES :]
        node.tails[number] = tail
        if not places:
            places.append(node)
        return sha256(node.digest + tail).digest()

    def remove(self, number: int) -> None:
        """Nobody finds it any more. One that is not listed is none."""
        for node in reversed(self._places.pop(number, [])):
            node.numbers.pop(number, None)
            node.tails.pop(number, None)
            self._prune(node)

    def matches(self, root: bytes, token_ids: bytes) -> Iterator[Match]:
        """Prefixes that begin as these tokens do, those with the most of them first, and of equal ones the newest.

        Whoever can use the beginning of a prefix takes the first. Behind it come all that end inside these tokens.
        """
        path = self._path(root, token_ids)
        if not path:
            return
        deepest = path[-1]
        if (beyond := _beyond(deepest, token_ids)) is not None:
            yield beyond
        if deepest.numbers:
            yield Match(next(reversed(deepest.numbers)), deepest.tokens)
        for node in reversed(path):
            start = node.tokens * ID_BYTES  # no slice: a prompt has as many nodes as blocks
            for number, tail in reversed(node.tails.items()):
                if token_ids.startswith(tail, start) and (tail or node.depth):
                    yield Match(number, node.tokens + len(tail) // ID_BYTES)

    def _path(self, root: bytes, token_ids: bytes) -> list[_Node]:
        """The nodes of the blocks that are known, the root's first."""
        node = self._roots.get(root)
        path = [] if node is None else [node]
        for digest, ids in zip(digests(root, token_ids), blocks_of(token_ids), strict=True):
            node = node.children.get(digest) if node is not None else None
            if node is None or node.ids != ids:
                break
            path.append(node)
        return path

    def _prune(self, node: _Node) -> None:
        while not node.is_needed:
            if node.parent is None:
                self._roots.pop(node.digest, None)
                return
            del node.parent.children[node.digest]
            self.log.removed(node.digest)
            node = node.parent

    # --- what was seen --------------------------------------------------------------------------------------------

    def known(self, root: bytes, token_ids: bytes, request: RequestId) -> int:
        """How many of these tokens, in whole blocks, another request than this one had before."""
        known = 0
        for digest in digests(root, token_ids):
            if self._seen.get(digest, request) == request:
                break
            known += 1
        return known * BLOCK_TOKENS

    def note(self, root: bytes, token_ids: bytes, request: RequestId) -> None:
        """`request` computes these tokens."""
        for digest in digests(root, token_ids):
            if self._seen.setdefault(digest, request) != request:
                self._seen[digest] = None
            self._seen.move_to_end(digest)
        while len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)

    def claim(self, root: bytes, token_ids: bytes, request: RequestId) -> bool:
        """Whether it is this request that is to publish these tokens: the first that asks, until it ends."""
        *_, digest = digests(root, token_ids)
        if self._claims.setdefault(digest, request) != request:
            return False
        self._claimed_by.setdefault(request, set()).add(digest)
        return True

    def ended(self, request: RequestId) -> None:
        """The request publishes nothing any more."""
        for digest in self._claimed_by.pop(request, ()):
            del self._claims[digest]


def _child(node: _Node, digest: bytes, ids: bytes) -> _Node:
    """The block's node; one whose digest is the same and whose ids are not gives way under a digest of its own."""
    child = node.children.get(digest)
    while child is not None and child.ids != ids:
        digest = sha256(digest).digest()
        child = node.children.get(digest)
    if child is None:
        child = node.children[digest] = _Node(digest, ids, node, node.depth + 1)
    return child


def _beyond(node: _Node, token_ids: bytes) -> Match | None:
    """Of what goes on behind the node, that which shares most of these tokens; None where nothing does."""
    rest = token_ids[node.tokens * ID_BYTES : (node.tokens + BLOCK_TOKENS) * ID_BYTES]
    best, found = 0, 0
    for _, (number, tail) in zip(range(MOST_LOOKED_AT), reversed(node.tails.items()), strict=False):
        if (common := common_tokens(tail, rest)) > best:
            best, found = common, number
    for _, child in zip(range(MOST_LOOKED_AT), reversed(node.children.values()), strict=False):
        if child.numbers and (common := common_tokens(child.ids, rest)) > best:
            best, found = common, next(reversed(child.numbers))
    return Match(found, node.tokens + best) if best else None
