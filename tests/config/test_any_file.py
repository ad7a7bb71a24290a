"""No settings file can end in anything but settings or one sentence."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvcluster.config import ConfigError, Settings, settings_from
from kvcluster.config_file import IMPORT_PATH, Listening, endpoint_from_yaml, settings_from_yaml
from kvcluster.serving_config import ServingSettings

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(max_size=8)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3), max_leaves=8
)
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5_000,
        "{a: " * 5_000,
        "- " * 5_000,
        "a: 2001-02-31",
        "a: !!int x",
        "? [1]\n: 2",
        "a: &a [*a]",
        "\x00",
        "9" * 5_000,
    ],
)
def test_a_file_that_cannot_be_parsed_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        settings_from_yaml(tmp_path / "c.yaml")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@same_folder
@given(document=documents | st.fixed_dictionaries({"applications": st.lists(documents, min_size=1, max_size=1)}))
def test_any_document_is_settings_or_one_sentence(tmp_path: Path, document: Any) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError):
        settings_from_yaml(tmp_path / "c.yaml")
    with pytest.raises(ConfigError):
        endpoint_from_yaml(tmp_path / "c.yaml", {}, Listening())


@same_folder
@given(changed=st.sampled_from(["http_options", "deployments", "models", "max_body"]), value=documents)
def test_any_value_in_an_endpoint_s_file_is_taken_or_refused(tmp_path: Path, changed: str, value: Any) -> None:
    args = {"model": "m", **({changed: value} if changed in ServingSettings.model_fields else {})}
    application = {"import_path": IMPORT_PATH, "args": args, **({changed: value} if changed == "deployments" else {})}
    document = {"applications": [application], **({changed: value} if changed == "http_options" else {})}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(document))
    with suppress(ConfigError):
        endpoint_from_yaml(tmp_path / "c.yaml", {}, Listening())


@given(name=st.sampled_from(sorted(Settings.model_fields)), value=documents)
@example(name="devices", value="x" * 1_000)
def test_any_value_is_taken_or_refused_in_one_short_sentence(name: str, value: Any) -> None:
    sentence = refusal(name, value)
    assert sentence is None or (name in sentence and len(sentence.splitlines()) == 1 and len(sentence) < 400)


def refusal(name: str, value: Any) -> str | None:
    try:
        settings_from({"model": "m", name: value})
    except ConfigError as refused:
        return str(refused)
    return None
