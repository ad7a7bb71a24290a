"""Prompts to token ids, without holding the event loop: long ones in a thread, few at a time.

A tokenizer releases the interpreter's lock while it works, and takes about a millisecond for 2,000 characters; what is
shorter costs less where it is than on its way to a thread. A thread cannot be stopped: whoever no longer waits for it
leaves it its place until it is through, so that clients who come and go never start more of them. Nor is a text read
to its end that is far too long by its beginning: 6 MB would take half a minute of a place.
"""

from __future__ import annotations

import asyncio

from actors.openai.asked import Conversation, Prompt
from actors.openai.problems import Problem, wrong
from actors.openai.seams import ModelCard, Prompts, WrongMessages
from kvcluster.services.completion import BAD_REQUEST, TOO_LONG

MOST_THREADS = 2
SHORT_CHARACTERS = 2_000
BEGINNING = 16  # characters for each token that there may be: several times as many as most texts have a token
LONGER = 4  # times, the next beginning, where that was none too many
FAR = 2  # times as many tokens as there may be: a text that is cut off has some more at its end

Ids = tuple[int, ...]


class Tokenizing:
    """One for all requests."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MOST_THREADS)

    async def ids(self, prompts: Prompts, prompt: Prompt, *, most_tokens: int) -> Ids:
        """The ids of `prompt`, which may be more than `most_tokens`.

        Raises:
            Problem: the model's template takes no such messages, nothing is left to begin with, or its beginning alone
                has far more than `most_tokens`.
        """
        if isinstance(prompt, tuple):
            return prompt
        name = "messages" if isinstance(prompt, Conversation) else "prompt"
        size = prompt.characters if isinstance(prompt, Conversation) else len(prompt)
        try:
            if size <= SHORT_CHARACTERS:
                ids = _encoded(prompts, prompt, most_tokens)
            else:
                ids = await self._in_thread(prompts, prompt, most_tokens)
        except WrongMessages as error:
            raise wrong("messages", f"messages are not what the model's chat template takes: {error}") from None
        if not ids:
            raise wrong(name, "prompt is empty: give at least one token")
        return ids

    async def _in_thread(self, prompts: Prompts, prompt: str | Conversation, most_tokens: int) -> Ids:
        await self._free.acquire()
        work = asyncio.get_running_loop().run_in_executor(None, _encoded, prompts, prompt, most_tokens)
        work.add_done_callback(self._give_back)
        return await asyncio.shield(work)

    def _give_back(self, work: asyncio.Future[Ids]) -> None:
        self._free.release()
        if not work.cancelled():
            work.exception()  # seen, also where nobody waits any more


def _encoded(prompts: Prompts, prompt: str | Conversation, most_tokens: int) -> Ids:
    if isinstance(prompt, str):
        _check_beginning(prompts, prompt, most_tokens)
        return prompts.encode(prompt)
    _check_beginning(prompts, prompt.text, most_tokens)
    return prompts.chat(prompt.messages)


def _check_beginning(prompts: Prompts, text: str, most_tokens: int) -> None:
    """Raises Problem where a beginning of it is far too long. Takes a few times what encoding so many tokens takes."""
    characters = BEGINNING * most_tokens
    while characters < len(text):
        if len(prompts.encode(text[:characters])) > FAR * most_tokens:
            raise _too_long(f"prompt has more than {FAR * most_tokens} tokens, and may have at most {most_tokens} here")
        characters *= LONGER


def fitting_tokens(ids: Ids, max_tokens: int | None, *, card: ModelCard, most_prompt_tokens: int | None) -> int:
    """How many tokens may be answered to this prompt: `max_tokens`, or all that the model's limit leaves.

    Raises:
        Problem: the prompt, or both together.
    """
    count = len(ids)
    if most_prompt_tokens is not None and count > most_prompt_tokens:
        raise _too_long(f"prompt has {count} tokens, and may have at most {most_prompt_tokens} here")
    wanted = max_tokens or max(1, card.max_model_len - count)
    if count + wanted > card.max_model_len:
        raise _too_long(
            f"prompt has {count} tokens and max_tokens is {wanted}: {count + wanted} together, and {_limit(card)}"
        )
    return wanted


def _limit(card: ModelCard) -> str:
    if card.context_tokens is None:
        return f"the model's context is {card.max_model_len} tokens"
    return (
        f"the KV memory here takes at most {card.max_model_len} tokens of one text "
        f"(the model's context is {card.context_tokens})"
    )


def _too_long(sentence: str) -> Problem:
    return Problem(BAD_REQUEST, TOO_LONG, sentence)
