"""Settings of an endpoint, and the file that Ray Serve takes: what is wrong is one sentence that names the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcluster.config import ConfigError, Settings, settings_from, settings_of
from kvcluster.config_file import Endpoint, Listening, endpoint_from, endpoint_from_yaml, settings_from_yaml
from kvcluster.serving_config import OWN_NAMES, ServingSettings, key_from_environment

ROOT = Path(__file__).parents[2]
NOWHERE = Listening()


def serving(**values: Any) -> ServingSettings:
    return settings_of(ServingSettings, values)


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        serving(**values)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def endpoint_file(tmp_path: Path, **changes: Any) -> Path:
    """A file with one thing changed: `document`, `application` or `args`."""
    args = {"model": "m", **changes.get("args", {})}
    application = {"import_path": "actors.serve_app:build", "args": args, **changes.get("application", {})}
    document = {"applications": [application], **changes.get("document", {})}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(document))
    return tmp_path / "c.yaml"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"models": {"": "m"}}, "models is ''"),
        ({"models": {"a b": "m"}}, "must name each model by what clients call it"),
        ({"models": {"Gateway": "m"}}, "and not Gateway"),
        ({"models": {"a": 3}}, "models.a is 3"),
        ({"models": ["m"]}, "models is ['m']"),
        ({"models": {}}, "model is missing"),
        ({"models": {"a": "m"}, "model": "m"}, "leave one of them out"),
        ({"models": {"a/b": "m", "a_b": "m"}}, "would be one deployment's"),
        ({"model": "m", "max_body": "much"}, "max_body is 'much', and must be a size"),
        ({"model": "m", "max_streams": 0}, "max_streams is 0, and must be"),
        ({"model": "m", "max_prompt_tokens": 0}, "max_prompt_tokens is 0, and must be"),
        ({"model": "m", "max_choices": 129}, "max_choices is 129, and must be"),
        ({"model": "m", "drain_s": -1}, "drain_s is -1, and must be"),
        ({"model": "m", "max_strems": 3}, "max_strems is not a setting: did you mean max_streams?"),
        ({"model": "m", "devices": "cuda", "fallback": "host"}, "fallback is host, and host pages are for models on"),
    ],
)
def test_a_wrong_setting_of_an_endpoint_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(**values)


@pytest.mark.parametrize("key", ["", "a b", "smörgås", 1234567])
def test_a_wrong_key_is_refused_and_never_shown(key: object) -> None:
    sentence = refusal(model="m", api_key=key)
    assert sentence.startswith("api_key must")
    assert not str(key) or str(key) not in sentence


def test_a_key_shows_in_no_settings_that_are_printed() -> None:
    assert "secret-words" not in repr(serving(model="m", api_key="secret-words"))


@pytest.mark.parametrize(
    ("values", "fallback"), [({}, "host"), ({"devices": "cuda"}, "refuse"), ({"fallback": "wait"}, "wait")]
)
def test_what_a_device_refuses_goes_to_host_pages_and_on_a_gpu_nowhere(values: dict[str, Any], fallback: str) -> None:
    assert serving(model="m", **values).fallback == fallback


def test_as_many_wait_as_run_unless_told_otherwise() -> None:
    assert serving(model="m", max_num_seqs=5).max_num_waiting == 5
    assert serving(model="m", max_num_seqs=5, max_num_waiting=0).max_num_waiting == 0


@pytest.mark.parametrize(
    ("path", "name"),
    [("gemma3-270m", "gemma3-270m"), ("/models/Tiny Llama/", "Tiny-Llama"), ("/", "model"), ("../-x", "x")],
)
def test_a_single_model_is_served_under_the_last_part_of_its_path(path: str, name: str) -> None:
    assert serving(model=path).served == {name: path}


def test_each_of_several_models_has_the_shared_settings_and_its_own_folder() -> None:
    settings = serving(models={"a/b": "/one", "c": "/two"}, max_num_seqs=5)
    assert settings.deployments == {"a_b": "a/b", "c": "c"}
    worker = settings.of("c")
    assert type(worker) is Settings
    assert (worker.model, worker.max_num_seqs, worker.fallback) == ("/two", 5, "host")


def test_the_cores_are_divided_between_the_replicas_of_all_models() -> None:
    one, two = serving(model="m"), serving(models={"a": "m", "b": "m"})
    assert two.threads_of(1) == max(1, one.threads_of(2))


def test_the_environment_s_key_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCLUSTER_API_KEY", "k")
    assert key_from_environment() == {"api_key": "k"}
    monkeypatch.setenv("KVCLUSTER_API_KEY", "")
    assert key_from_environment() == {}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"application": {"args": {}}}, "model is missing"),
        ({"application": {"deployments": {"name": "m"}}}, "deployments must be a list"),
        ({"application": {"deployments": [3]}}, "deployments[0] must be a mapping"),
        ({"application": {"deployments": [{}]}}, "deployments[0].name is 'None'"),
        ({"application": {"deployments": [{"name": "Gatway"}]}}, "did you mean Gateway?"),
        ({"application": {"deployments": [{"name": "zzz"}]}}, "there are Gateway, m"),
        (
            {"application": {"deployments": [{"name": "m"}, {"name": "m", "num_repliacs": 2}]}},
            "applications[0].deployments[1].num_repliacs is not a setting: did you mean num_replicas?",
        ),
        (
            {"application": {"deployments": [{"name": "m", "max_num_seqs": 2}]}},
            "max_num_seqs stands in the wrong place: settings stand in the args of the application",
        ),
        (
            {"application": {"deployments": [{"name": "m", "ray_actor_options": {"num_cpu": 2}}]}},
            "ray_actor_options.num_cpu is not a setting: did you mean num_cpus?",
        ),
        (
            {"application": {"deployments": [{"name": "m", "autoscaling_config": {"min_replica": 2}}]}},
            "autoscaling_config.min_replica is not a setting: did you mean min_replicas?",
        ),
        (
            {"document": {"grpc_options": {"prt": 1}}},
            "grpc_options.prt is not a setting: did you mean port?",
        ),
        ({"application": {"import_path": "a:b"}}, "import_path must be actors.serve_app:build"),
        ({"document": {"http_options": {"hots": "::"}}}, "http_options.hots is not a setting: did you mean host?"),
        ({"document": {"http_options": {"host": 3}}}, "http_options.host is '3', and must be"),
        ({"document": {"http_options": {"port": 0}}}, "http_options.port is '0', and must be from 1"),
        ({"document": {"http_options": [1]}}, "http_options must be a mapping"),
        ({"document": {"max_streams": 1}}, "max_streams stands in the wrong place"),
    ],
)
def test_a_wrong_key_of_serve_s_own_is_refused_by_its_place(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    file = endpoint_file(tmp_path, **changes)
    with pytest.raises(ConfigError) as refused:
        endpoint_from_yaml(file, {}, NOWHERE)
    assert str(refused.value).startswith(f"{file}: ")
    assert sentence in str(refused.value)


def test_the_file_that_ships_is_an_endpoint_of_defaults_on_this_machine_alone() -> None:
    endpoint = endpoint_from_yaml(ROOT / "ray_config.yaml", {}, NOWHERE)
    assert endpoint.settings == serving(model="gemma3-270m")
    assert (endpoint.host, endpoint.port) == ("127.0.0.1", 8000)


def test_a_batch_job_reads_the_file_of_an_endpoint(tmp_path: Path) -> None:
    own = {"max_streams": 4, "max_choices": 2, "api_key": "k", "max_body": "1MiB", "drain_s": 1.0}
    own |= {"max_prompt_tokens": 5}
    assert own.keys() == OWN_NAMES - {"models"}
    assert settings_from_yaml(endpoint_file(tmp_path, args=own)) == settings_from({"model": "m"})


def test_an_option_wins_over_the_file_and_a_model_over_its_models(tmp_path: Path) -> None:
    file = endpoint_file(tmp_path, application={"args": {"models": {"a": "/x", "b": "/y"}, "max_num_seqs": 4}})
    assert endpoint_from_yaml(file, {"max_num_seqs": 8}, NOWHERE).settings.max_num_seqs == 8
    assert told(endpoint_from_yaml(file, {"model": "/z"}, NOWHERE)) == {"model": "/z", "max_num_seqs": 4}


def told(endpoint: Endpoint) -> object:
    return endpoint.application["args"]


@pytest.mark.parametrize(
    ("listening", "place"),
    [(NOWHERE, ("::1", 9)), (Listening(port=7), ("::1", 7)), (Listening(host="0.0.0.0"), ("0.0.0.0", 9))],
)
def test_where_it_listens_is_as_said_and_else_as_the_file_says(
    tmp_path: Path, listening: Listening, place: tuple[str, int]
) -> None:
    file = endpoint_file(tmp_path, document={"http_options": {"host": "::1", "port": 9, "keep_alive_timeout_s": 2}})
    endpoint = endpoint_from_yaml(file, {}, listening)
    assert (endpoint.host, endpoint.port) == place
    assert endpoint.document["http_options"]["keep_alive_timeout_s"] == 2


def test_without_a_file_it_listens_on_this_machine_alone() -> None:
    endpoint = endpoint_from({"model": "m"}, NOWHERE)
    assert (endpoint.host, endpoint.port, told(endpoint)) == ("127.0.0.1", 8000, {"model": "m"})
