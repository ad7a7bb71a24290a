"""The application under test, with limits that no test meets unless it says so."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from actors.openai import app
from actors.openai.limits import MOST_PROMPTS, Limits
from actors.openai.seams import Models
from kvcluster.services.completion import MOST_CHOICES
from kvcluster.units import MIB

LIMITS = Limits(
    most_body_bytes=4 * MIB,
    most_prompt_tokens=None,
    most_prompts=MOST_PROMPTS,
    most_choices=MOST_CHOICES,
    most_n=MOST_CHOICES,
    most_streams=1024,
    api_key=None,
)


def open_app(models: Models, limits: Limits = LIMITS, **more: Any) -> FastAPI:
    """As `actors.openai.app.open_app`."""
    return app.open_app(models, limits, **more)
