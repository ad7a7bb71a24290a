"""Who shares what with whom, played on three sites: an owner, who joins it, and who joins those.

    owner    reads a prompt, publishes it, goes on, and ends before the others do
    whole    joins all of it with another text behind it, and publishes that longer prompt with what it said
    twin     has the owner's very prompt
    part     agrees with the prompt up to some token, is preempted, joins again and goes on
    upon     joins what `whole` published
    miss     the prompt of one of these, computed from its first token on

Nothing is judged here: what was said, what was joined, and how far K and V of a hit and its miss are apart is
`Found`. A witness maps every prefix in the device's process, and compares its bytes before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from tests.exact.prefix_site import Known, Site

SAID = 8
FIRST_SAID = 4  # before a text is published or preempted
BEHIND = 8  # tokens of a prompt behind the longest prefix
BLOCK = 24  # texts at a time

Prompt = list[int]


@dataclass(frozen=True, slots=True)
class Told:
    """What a text said; `match` of its tokens agree with a prefix of `published`. `joined` may be a refusal."""

    role: str
    prompt: Prompt
    said: list[int]
    published: int
    match: int
    joined: int | str


@dataclass(slots=True)
class Found:
    told: list[Told] = field(default_factory=list)
    refused: list[tuple[int, int, str]] = field(default_factory=list)  # tokens, those of them joined from, and why
    apart: float = 0.0
    changed: int = 0  # prefixes whose bytes did not stay as they were


class Player(Protocol):
    """A `Site`, here or in another process."""

    def open(self, prompt: Sequence[int]) -> int: ...
    def join(self, number: int, known: Known, match: int) -> int | str: ...
    def say(self, numbers: Sequence[int], count: int) -> list[list[int]]: ...
    def publish(self, numbers: Sequence[int]) -> list[Known | str]: ...
    def release(self, number: int) -> None: ...
    def close(self, numbers: Sequence[int]) -> None: ...
    def far(self, number: int, other: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Stage:
    """The witness is in the device's process. `longest` is the longest prompt that owners have."""

    owner: Player
    first: Player
    second: Player
    witness: Site
    longest: int


def prompt(tokens: int) -> Prompt:
    """The text that owners have, so many tokens of it."""
    drawn = torch.randint(2, 512, (tokens,), generator=torch.Generator().manual_seed(7))
    return [int(token) for token in drawn]


def parted(agreed: Sequence[int], tokens: int) -> Prompt:
    """`tokens` tokens, of which the first are `agreed`, and the next is not the owners' next."""
    theirs = prompt(tokens)
    return [*agreed, *(2 + (theirs[at] + 100 + at) % 510 for at in range(len(agreed), tokens))]


class Group:
    """Texts of one role on one site."""

    def __init__(self, role: str, site: Player) -> None:
        self.site = site
        self.numbers: list[int] = []
        self.prompts: list[Prompt] = []
        self._role = role
        self._known: list[tuple[Known, int, int | str]] = []

    def join(self, prompt: Prompt, prefix: Known, match: int) -> None:
        number = self.site.open(prompt)
        self.numbers.append(number)
        self.prompts.append(prompt)
        self._known.append((prefix, match, self.site.join(number, prefix, match)))

    @property
    def published(self) -> list[int]:
        """Tokens of the prefix that each has joined."""
        return [int(prefix[3]) for prefix, _, _ in self._known]

    def rejoin(self) -> None:
        """Each is preempted, and joins again."""
        for number, (prefix, match, _) in zip(self.numbers, self._known, strict=True):
            self.site.release(number)
            self.site.join(number, prefix, match)

    def say(self, count: int) -> list[list[int]]:
        return self.site.say(self.numbers, count)

    def told(self) -> Iterator[Told]:
        for text, said, (prefix, match, joined) in zip(self.prompts, self.say(SAID), self._known, strict=True):
            yield Told(self._role, text, said, int(prefix[3]), match, joined)

    def finish(self, found: Found) -> None:
        found.told += self.told()
        self.site.close(self.numbers)

    def compare(self, found: Found) -> None:
        """With misses of the same prompts on the same site."""
        self.say(SAID)
        misses = [self.site.open(text) for text in self.prompts]
        for text, said in zip(self.prompts, self.site.say(misses, SAID), strict=True):
            found.told.append(Told("miss", text, said, 0, 0, 0))
        for hit, miss in zip(self.numbers, misses, strict=True):
            found.apart = max(found.apart, self.site.far(hit, miss))
        self.site.close(misses)


class Owners:
    """Texts of several lengths, published."""

    def __init__(self, stage: Stage, lengths: Sequence[int], found: Found) -> None:
        self._site, self._witness = stage.owner, stage.witness
        self._prompts = [prompt(tokens) for tokens in lengths]
        self._numbers = [self._site.open(text) for text in self._prompts]
        self._site.say(self._numbers, 1)
        published = self._site.publish(self._numbers)
        refused = [(tokens, one) for tokens, one in zip(lengths, published, strict=True) if isinstance(one, str)]
        found.refused += [(tokens, 0, why) for tokens, why in refused]
        self.prefixes = [one for one in published if not isinstance(one, str)]
        self._watched = [self._watch(prefix) for prefix in self.prefixes]
        self._before = self._witness.digests(self._watched)

    def end(self, found: Found) -> None:
        """They go on to the end, and are closed."""
        for text, said in zip(self._prompts, self._site.say(self._numbers, SAID), strict=True):
            found.told.append(Told("owner", text, said, 0, 0, 0))
        self._site.close(self._numbers)

    def compare(self, found: Found) -> None:
        after = self._witness.digests(self._watched)
        found.changed += sum(a != b for a, b in zip(self._before, after, strict=True))
        self._witness.close(self._watched)

    def _watch(self, prefix: Known) -> int:
        number = self._witness.open([0])
        assert self._witness.join(number, prefix, int(prefix[3])) == prefix[4]
        return number


def play(stage: Stage, lengths: Sequence[int], found: Found) -> None:
    """Prefixes of each of `lengths` tokens, and one after another all roles."""
    owners = Owners(stage, lengths, found)
    whole, twins, parts = Group("whole", stage.first), Group("twin", stage.first), Group("part", stage.second)
    for prefix in owners.prefixes:
        tokens = int(prefix[3])
        match = tokens - tokens % 5
        whole.join(parted(prompt(tokens), stage.longest + BEHIND), prefix, tokens)
        twins.join(prompt(tokens), prefix, tokens)
        parts.join(parted(prompt(match), stage.longest + BEHIND), prefix, match)
    for group in (whole, parts):
        group.say(FIRST_SAID)
    parts.rejoin()
    owners.end(found)
    upon = joined_upon(stage, whole, found)
    whole.compare(found)
    for group in (whole, twins, parts):
        group.finish(found)
    upon.compare(found)  # it goes on when those that it joined are gone
    upon.finish(found)
    owners.compare(found)


def joined_upon(stage: Stage, whole: Group, found: Found) -> Group:
    """Each of `whole` publishes its prompt and what it has said; others join that, most of them not all of it."""
    upon = Group("upon", stage.second)
    texts = [text + said for text, said in zip(whole.prompts, whole.say(FIRST_SAID), strict=True)]
    for place, (text, prefix) in enumerate(zip(texts, stage.first.publish(whole.numbers), strict=True)):
        if isinstance(prefix, str):
            found.refused.append((len(text) - 1, whole.published[place], prefix))
        else:
            match = len(text) - 1 - place % 7
            upon.join(parted(text[:match], stage.longest + BEHIND + FIRST_SAID + 4), prefix, match)
    return upon


def play_matches(stage: Stage, matches: Sequence[int], found: Found) -> None:
    """One prefix, the longest, of which the first `matches` tokens agree."""
    owners = Owners(stage, [stage.longest], found)
    for prefix in owners.prefixes:
        for start in range(0, len(matches), BLOCK):
            parts = Group("part", stage.second)
            for match in matches[start : start + BLOCK]:
                parts.join(parted(prompt(match), stage.longest + BEHIND), prefix, match)
            parts.compare(found)
            parts.finish(found)
    owners.end(found)
    owners.compare(found)


def play_all(stage: Stage, lengths: Sequence[int], matches: Sequence[int]) -> Found:
    found = Found()
    for start in range(0, len(lengths), BLOCK):
        play(stage, lengths[start : start + BLOCK], found)
    play_matches(stage, matches, found)
    return found


def play_wrong(owners: Site, stage: Stage, token: int) -> list[int]:
    """What is said by who joins a prefix in which the K of one token is wrong."""
    owner = owners.open(prompt(stage.longest))
    owners.say([owner], 1)
    owners.spoil_key(owner, token)
    [prefix] = owners.publish([owner])
    assert not isinstance(prefix, str)
    group = Group("whole", stage.first)
    group.join(parted(prompt(stage.longest), stage.longest + BEHIND), prefix, stage.longest)
    [said] = group.say(SAID)
    stage.first.close(group.numbers)
    owners.close([owner])
    return said
