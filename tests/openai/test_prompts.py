from __future__ import annotations

from pathlib import Path

import pytest

from actors.openai.prompts import ModelPrompts, open_prompts, plain_chat
from actors.openai.seams import Message, WrongMessages
from kvcluster.engine.refusals import ModelNotFound
from kvcluster.engine.tokenizer import open_tokenizer

CHAT = (Message("system", "be brief"), Message("user", "hello", name="Ann"))
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('tools are not known') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{{ m.content + 1 if m.content == 'sum' }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_chat_without_a_template_is_a_line_a_message(folder: Path) -> None:
    prompts = open_prompts(folder)

    text = "system: be brief\nuser (Ann): hello\nassistant:"
    assert plain_chat(CHAT) == text
    assert prompts.chat(CHAT) == prompts.encode(text) == tuple(open_tokenizer(folder).encode(text))


def test_a_chat_goes_through_the_models_own_template(folder: Path) -> None:
    tokenizer = open_tokenizer(folder)
    tokenizer.inner.chat_template = TEMPLATE

    ids = ModelPrompts(tokenizer).chat(CHAT)
    assert tokenizer.decode(ids) == "<system>be brief<user>hello<assistant>"


@pytest.mark.parametrize("message", [Message("tool", "a"), Message("user", "sum")])
def test_messages_that_the_template_does_not_take_are_wrong_and_nothing_else(folder: Path, message: Message) -> None:
    tokenizer = open_tokenizer(folder)
    tokenizer.inner.chat_template = TEMPLATE

    with pytest.raises(WrongMessages):
        ModelPrompts(tokenizer).chat([message])


def test_a_folder_without_a_tokenizer_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        open_prompts(tmp_path)
