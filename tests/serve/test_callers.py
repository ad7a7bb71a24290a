"""What a gateway asked for ends with it, also where it was killed and cancelled nothing."""

from __future__ import annotations

import asyncio

from actors.callers import Callers


def test_what_is_under_way_for_a_caller_that_died_is_left_off_and_nothing_else() -> None:
    async def story() -> list[str]:
        dead: set[str] = set()
        left: list[str] = []
        both = asyncio.Event()

        def leave(what: str) -> None:
            left.append(what)
            if len(left) == 2:
                both.set()

        callers = Callers(lambda caller: caller not in dead, every_s=0.001)
        with callers.asking("a", lambda: leave("a 1")), callers.asking("b", lambda: leave("b")):
            with callers.asking("a", lambda: leave("over")):
                pass
            with callers.asking("a", lambda: leave("a 2")):
                dead.add("a")
                async with asyncio.timeout(30):
                    await both.wait()
        return left

    assert sorted(asyncio.run(story())) == ["a 1", "a 2"]


def test_nobody_is_asked_after_when_nothing_is_under_way() -> None:
    async def story() -> int:
        asked = 0

        def is_alive(caller: str) -> bool:
            nonlocal asked
            asked += 1
            return True

        callers = Callers(is_alive, every_s=0.0)
        with callers.asking("a", lambda: None):
            pass
        for _ in range(20):
            await asyncio.sleep(0)
        return asked

    assert asyncio.run(story()) == 0
