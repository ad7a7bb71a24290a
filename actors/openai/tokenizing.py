"""Prompts to token ids, without holding the event loop: long ones in a thread, few at a time.

A tokenizer releases the interpreter's lock while it works, and takes about a millisecond for 2,000 characters; what is
shorter costs less where it is than on its way to a thread. A thread cannot be stopped: whoever no longer waits for it
leaves it its place until it is through, so that clients who come and go never start more of them.
"""

from __future__ import annotations

import asyncio

from actors.openai.asked import Conversation, Prompt
from actors.openai.problems import BAD_REQUEST, TOO_LONG, Problem, wrong
from actors.openai.seams import Prompts, WrongMessages

MOST_THREADS = 2
SHORT_CHARACTERS = 2_000

Ids = tuple[int, ...]


class Tokenizing:
    """One for all requests."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MOST_THREADS)

    async def ids(self, prompts: Prompts, prompt: Prompt) -> Ids:
        """The ids of `prompt`.

        Raises:
            Problem: the model's template takes no such messages, or nothing is left to begin with.
        """
        if isinstance(prompt, tuple):
            return prompt
        name = "messages" if isinstance(prompt, Conversation) else "prompt"
        size = prompt.characters if isinstance(prompt, Conversation) else len(prompt)
        try:
            ids = _encoded(prompts, prompt) if size <= SHORT_CHARACTERS else await self._in_thread(prompts, prompt)
        except WrongMessages as error:
            raise wrong("messages", f"messages are not what the model's chat template takes: {error}") from None
        if not ids:
            raise wrong(name, "prompt is empty: give at least one token")
        return ids

    async def _in_thread(self, prompts: Prompts, prompt: str | Conversation) -> Ids:
        await self._free.acquire()
        work = asyncio.get_running_loop().run_in_executor(None, _encoded, prompts, prompt)
        work.add_done_callback(self._give_back)
        return await asyncio.shield(work)

    def _give_back(self, work: asyncio.Future[Ids]) -> None:
        self._free.release()
        if not work.cancelled():
            work.exception()  # seen, also where nobody waits any more


def _encoded(prompts: Prompts, prompt: str | Conversation) -> Ids:
    return prompts.chat(prompt.messages) if isinstance(prompt, Conversation) else prompts.encode(prompt)


def fitting_tokens(ids: Ids, max_tokens: int | None, *, context: int, most_prompt_tokens: int | None) -> int:
    """How many tokens may be answered to this prompt: `max_tokens`, or all that the context leaves.

    Raises:
        Problem: the prompt, or both together.
    """
    count = len(ids)
    if most_prompt_tokens is not None and count > most_prompt_tokens:
        raise _too_long(f"prompt has {count} tokens, and may have at most {most_prompt_tokens} here")
    wanted = max_tokens or max(1, context - count)
    if count + wanted > context:
        raise _too_long(
            f"prompt has {count} tokens and max_tokens is {wanted}: {count + wanted} together, and the model's context "
            f"is {context} tokens"
        )
    return wanted


def _too_long(sentence: str) -> Problem:
    return Problem(BAD_REQUEST, TOO_LONG, sentence)
