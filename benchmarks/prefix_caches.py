"""Caches of prefixes for `bench_prefix_policy`: the tree of blocks as the index drives a policy, ARC, and the optimum.

All hold so many blocks; a block is there only with all that comes before it in its prompt. A request finds the longest
beginning that is there, has all its blocks in use while it runs, and leaves them children first. What is in use never
goes, and of a victim with blocks behind it the last one goes first.

The least recently used and the optimum are defined as in kvcache-simulator 0.1.3 and agree with it to the token: the
optimum lets the block go whose next use is furthest, and takes none in that is needed later than all that are there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from benchmarks.prefix_loads import Load
from kvcluster.index.retention import Retention


class Policy(Protocol):
    """Which idle block goes next; see `kvcluster.index.retention`."""

    def use(self, *keys: int) -> None: ...
    def idle(self, *keys: int) -> None: ...
    def victim(self) -> int | None: ...
    def forget(self, key: int) -> None: ...


class LeastRecent:
    """The one that is idle for longest."""

    def __init__(self) -> None:
        self._idle: OrderedDict[int, None] = OrderedDict()

    def use(self, *keys: int) -> None:
        for key in keys:
            self._idle.pop(key, None)

    def idle(self, *keys: int) -> None:
        self._idle.update(dict.fromkeys(reversed(keys)))

    def victim(self) -> int | None:
        return next(iter(self._idle), None)

    def forget(self, key: int) -> None:
        self._idle.pop(key, None)


def ours(load: Load, size: int) -> Iterator[int]:
    """Blocks found, of each request."""
    return driven(Retention(), load, size)


def least_recent(load: Load, size: int) -> Iterator[int]:
    """Blocks found, of each request."""
    return driven(LeastRecent(), load, size)


def driven(policy: Policy, load: Load, size: int) -> Iterator[int]:
    """Blocks found, of each request, by a tree of blocks whose victims `policy` names."""
    tree = _Tree()
    for request in load:
        found = next((at for at, block in enumerate(request.blocks) if block not in tree.children), len(request.blocks))
        yield found
        policy.use(*request.blocks[:found])
        in_use = [*request.blocks[:found]]
        for block in request.blocks[found:]:
            if len(tree.children) >= size and not tree.evict(policy):
                break  # all are in use
            tree.add(block, in_use[-1] if in_use else None)
            in_use.append(block)
        policy.use(*in_use[found:])
        policy.idle(*in_use)


class _Tree:
    def __init__(self) -> None:
        self.children: dict[int, dict[int, None]] = {}
        self._parents: dict[int, int | None] = {}

    def add(self, block: int, parent: int | None) -> None:
        self.children[block], self._parents[block] = {}, parent
        if parent is not None:
            self.children[parent][block] = None

    def evict(self, policy: Policy) -> bool:
        victim = policy.victim()
        if victim is None:
            return False
        while self.children[victim]:
            victim = next(iter(self.children[victim]))
        policy.forget(victim)
        del self.children[victim]
        if (parent := self._parents.pop(victim)) is not None:
            del self.children[parent][victim]
        return True


def arc(load: Load, size: int) -> Iterator[int]:
    """Blocks found, of each request, by ARC (Megiddo and Modha, 2003), which sees a request's blocks last to first."""
    cache = _Arc(size)
    for request in load:
        blocks = request.blocks
        yield next((at for at, block in enumerate(blocks) if block not in cache), len(blocks))
        for block in reversed(blocks):
            cache.access(block)


class _Arc:
    def __init__(self, size: int) -> None:
        self._size = size
        self._target = 0.0  # of those that were used once
        self._once, self._often, self._ghosts_once, self._ghosts_often = (OrderedDict[int, None]() for _ in range(4))

    def __contains__(self, block: int) -> bool:
        return block in self._once or block in self._often

    def access(self, block: int) -> None:
        if block in self:
            self._once.pop(block, None)
            self._often.pop(block, None)
            self._often[block] = None
        elif block in self._ghosts_once:
            more = max(1.0, len(self._ghosts_often) / len(self._ghosts_once))
            self._target = min(self._size, self._target + more)
            self._come_back(block, self._ghosts_once)
        elif block in self._ghosts_often:
            less = max(1.0, len(self._ghosts_once) / len(self._ghosts_often))
            self._target = max(0.0, self._target - less)
            self._come_back(block, self._ghosts_often)
        else:
            self._make_room()
            self._once[block] = None

    def _come_back(self, block: int, ghosts: OrderedDict[int, None]) -> None:
        was_often = ghosts is self._ghosts_often
        is_over = len(self._once) > self._target or (was_often and len(self._once) == int(self._target))
        self._replace(is_over)
        del ghosts[block]
        self._often[block] = None

    def _make_room(self) -> None:
        recent = len(self._once) + len(self._ghosts_once)
        everything = recent + len(self._often) + len(self._ghosts_often)
        if recent == self._size and not self._ghosts_once:
            self._once.popitem(last=False)
        elif recent == self._size or everything >= self._size:
            if recent == self._size:
                self._ghosts_once.popitem(last=False)
            elif everything == 2 * self._size:
                self._ghosts_often.popitem(last=False)
            self._replace(len(self._once) > self._target)

    def _replace(self, is_over: bool) -> None:
        if self._once and (is_over or not self._often):
            self._ghosts_once[self._once.popitem(last=False)[0]] = None
        else:
            self._ghosts_often[self._often.popitem(last=False)[0]] = None


def optimum(load: Load, size: int) -> Iterator[int]:
    """Blocks found, of each request, by one that knows what comes."""
    tree = _Known(size)
    for request, next_uses in zip(load, _next_uses(load), strict=True):
        found = next((at for at, b in enumerate(request.blocks) if b not in tree.next_use), len(request.blocks))
        yield found
        tree.run(request.blocks, next_uses, found)


class _Known:
    """Blocks whose next use is known. Leaves stand in a heap, the one that is needed last first."""

    def __init__(self, size: int) -> None:
        self.next_use: dict[int, int] = {}
        self._size = size
        self._parents: dict[int, int | None] = {}
        self._behind: dict[int, int] = {}  # how many blocks
        self._leaves: list[tuple[int, int]] = []

    def run(self, blocks: tuple[int, ...], next_uses: list[int], found: int) -> None:
        self.next_use.update(zip(blocks[:found], next_uses, strict=False))
        in_use = set(blocks)
        held = found
        for at in range(found, len(blocks)):
            if len(self.next_use) >= self._size and not self._evict(in_use, next_uses[at]):
                break
            self._add(blocks[at], blocks[at - 1] if at else None, next_uses[at])
            held += 1
        for block in blocks[:held]:
            self._push(block)

    def _add(self, block: int, parent: int | None, next_use: int) -> None:
        self.next_use[block], self._parents[block], self._behind[block] = next_use, parent, 0
        if parent is not None:
            self._behind[parent] += 1

    def _push(self, block: int) -> None:
        if not self._behind[block]:
            heappush(self._leaves, (-self.next_use[block], block))
        if len(self._leaves) > 4 * self._size:
            self._leaves = [(-at, b) for b, at in self.next_use.items() if not self._behind[b]]
            heapify(self._leaves)

    def _evict(self, in_use: set[int], needed: int) -> bool:
        """One that is needed later than `needed`, if there is one."""
        while self._leaves:
            at, block = self._leaves[0]
            if self.next_use.get(block) != -at or self._behind[block] or block in in_use:
                heappop(self._leaves)  # of the past, or pushed again when its request is over
            elif -at <= needed:
                return False
            else:
                heappop(self._leaves)
                self._remove(block, in_use)
                return True
        return False

    def _remove(self, block: int, in_use: set[int]) -> None:
        del self.next_use[block], self._behind[block]
        parent = self._parents.pop(block)
        if parent is not None:
            self._behind[parent] -= 1
            if parent not in in_use:
                self._push(parent)


def _next_uses(load: Load) -> list[list[int]]:
    """For each block of each request, the number of the next request that has it."""
    last: dict[int, int] = {}
    uses: list[list[int]] = []
    for number in range(len(load) - 1, -1, -1):
        uses.append([last.get(block, len(load)) for block in load[number].blocks])
        last.update(dict.fromkeys(load[number].blocks, number))
    return uses[::-1]
