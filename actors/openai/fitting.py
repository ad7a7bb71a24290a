"""Whether a request is one that can ever be answered here, by how many texts there is room for at one time."""

from __future__ import annotations

from actors.openai.asked import Asked
from actors.openai.problems import wrong
from actors.openai.seams import ModelCard


def check_fits(asked: Asked, card: ModelCard) -> None:
    """Nothing, where all texts of one request can be computed or wait at one time: all of them begin, or none does.

    Raises:
        Problem: they cannot, whoever leaves. Asked later it would be the same.
    """
    prompts, n, room = len(asked.prompts), asked.request.n, card.room
    if room is None or prompts <= room.most_prompts(n):
        return
    texts = f"{prompts} prompts" if n == 1 else f"n is {n} for each of {prompts} prompts, and so many texts"
    of_each = f"{room.texts} texts (max_num_seqs and max_num_waiting)"
    holders = f"one replica holds {of_each}" if room.replicas == 1 else f"{room.replicas} replicas hold {of_each} each"
    sentence = (
        f"{texts} never fit at one time: {holders}. Ask for at most {room.most_prompts(n)} prompts in one request"
    )
    raise wrong("prompt" if n == 1 else "n", sentence)
