"""Settings: one clear sentence for whatever is wrong, and the file says the same as the options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcluster.config import ConfigError, settings_from
from kvcluster.config_file import settings_from_yaml
from kvcluster.serving_config import ServingSettings
from kvcluster.units import MIB

ROOT = Path(__file__).parents[2]


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        settings_from({"model": "m", **values})
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ""),
        ("model", 3),
        ("devices", "gpu:0"),
        ("devices", "GPU-7374616e-642d-696e-2047-505500000000"),
        ("devices", "cuda:"),
        ("devices", "cuda:0,0"),
        ("devices", "host:"),
        ("devices", "host:0,0"),
        ("devices", "host:0,00"),
        ("devices", "host:-1"),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.1),
        ("gpu_memory_utilization", float("nan")),
        ("device_memory", "12 elephants"),
        ("device_memory", "0"),
        ("device_memory", -65536),
        ("device_memory", True),
        ("device_memory", "9" * 400),
        ("granule", "48KiB"),
        ("granule", "1KiB"),
        ("granule", "2GiB"),
        ("dtype", "float16"),
        ("layout", "paged"),
        ("workers_per_device", 0),
        ("nodes", 0),
        ("nodes", True),
        ("nodes", "many"),
        ("nodes", 1.5),
        ("threads", 0),
        ("threads", True),
        ("max_num_seqs", "4"),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 1.5),
        ("max_restarts", -1),
        ("prefix_cache", "yes"),
        ("prefix_cache", 1),
        ("fallback", "cpu"),
        ("host_memory", "much"),
        ("block_size", 0),
        ("block_size", 1025),
        ("lease_s", float("nan")),
        ("lease_s", float("inf")),
        ("idle_exit_s", 0),
        ("tenant_quotas", "1GiB"),
        ("tenant_quotas", ["acme"]),
        ("retry_after_min_s", -1),
    ],
)
def test_a_wrong_value_is_one_sentence_with_its_name_its_value_and_what_is_allowed(name: str, value: object) -> None:
    sentence = refusal(**{name: value})
    assert sentence.startswith(f"{name} is {repr(value)[:90]}")
    assert ", and must " in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("quotas", "sentence"),
    [
        ({"acme": "much"}, "tenant_quotas.acme is 'much', and must be a size such as 512MiB, with KiB, MiB or GiB"),
        ({"acme": 0}, "tenant_quotas.acme is 0, and must be a size such as 512MiB, with KiB, MiB or GiB"),
        ({"acme": None}, "tenant_quotas.acme is None, and must be a valid string"),
        ({"a" * 65: "1GiB"}, f"tenant_quotas is '{'a' * 65}', and must have at most 64 characters"),
    ],
)
def test_a_wrong_quota_is_named_with_its_tenant(quotas: dict[str, Any], sentence: str) -> None:
    assert refusal(tenant_quotas=quotas) == sentence


def test_quotas_are_sizes_by_tenant() -> None:
    settings = settings_from({"model": "m", "tenant_quotas": {"acme": "128MiB", "": 4096}})
    assert settings.tenant_quota_bytes == {"acme": 128 * 2**20, "": 4096}
    assert settings_from({"model": "m"}).tenant_quota_bytes == {}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"max_num_seqs": 600}, "max_num_batched_tokens is 512, and must be at least max_num_seqs, which is 600"),
        ({"lease_s": 5}, "heartbeat_s is 5.0, and must be less than lease_s, which is 5.0"),
        ({"retry_after_min_s": 60}, "retry_after_min_s is 60.0, and must be at most retry_after_max_s, which is 30.0"),
        ({"device_memory": "100KiB"}, "device_memory is 100KiB, and must be a multiple of granule, which is 64KiB"),
    ],
)
def test_two_values_that_do_not_fit_together_are_both_named(values: dict[str, Any], sentence: str) -> None:
    assert refusal(**values) == sentence


def test_a_mistyped_setting_is_refused_with_the_one_that_was_meant() -> None:
    assert refusal(max_num_seq=4) == "max_num_seq is not a setting: did you mean max_num_seqs?"


def test_a_missing_model_says_how_to_name_one() -> None:
    with pytest.raises(ConfigError, match=r"^model is missing: name it with --model or in the config file$"):
        settings_from({})


@pytest.mark.parametrize(("given", "nodes"), [(3, 3), ("3", 3), ("all", "all")])
def test_nodes_are_a_number_or_all_of_them(given: object, nodes: object) -> None:
    assert settings_from({"model": "m", "nodes": given}).nodes == nodes


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        settings_from({"model": "m"}).model = "other"


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ("host", ("host:0",)),
        ("host:3", ("host:3",)),
        ("host:0,1", ("host:0", "host:1")),
        ("cuda:1", ("cuda:1",)),
        ("cuda:0,1", ("cuda:0", "cuda:1")),
        ("cuda", ()),
    ],
)
def test_devices_become_names(devices: str, names: tuple[str, ...]) -> None:
    assert settings_from({"model": "m", "devices": devices}).device_names == names


@pytest.mark.parametrize("memory", ["64MiB", "65536KiB", 64 * 2**20, "67108864"])
def test_a_size_is_the_same_in_every_form(memory: object) -> None:
    assert settings_from({"model": "m", "device_memory": memory}).device_memory_bytes == 64 * 2**20


@pytest.mark.parametrize("devices", ["host:0,cuda:0", "cuda,host", "cuda:0,host:1"])
def test_host_and_gpus_in_one_job_are_refused_with_the_way_out(devices: str) -> None:
    rule = "must be host or cuda devices, and not both: run a job for each"
    assert refusal(devices=devices) == f"devices is {devices!r}, and {rule}"


@pytest.mark.parametrize(
    ("devices", "memory", "granule"),
    [
        ("host", 512 * 2**20, 64 * 2**10),
        ("host:0,1", 512 * 2**20, 64 * 2**10),
        ("cuda", None, None),
        ("cuda:0", None, None),
    ],
)
def test_on_the_host_sizes_have_defaults_and_on_a_gpu_the_device_says_them(
    devices: str, memory: int | None, granule: int | None
) -> None:
    settings = settings_from({"model": "m", "devices": devices})
    assert (settings.device_memory_bytes, settings.granule_bytes) == (memory, granule)
    assert settings_from({"model": "m", "devices": devices, "device_memory": None, "granule": None}) == settings


def test_sizes_that_are_named_hold_on_a_gpu_too() -> None:
    settings = settings_from({"model": "m", "devices": "cuda", "device_memory": "8GiB", "granule": "2MiB"})
    assert (settings.device_memory_bytes, settings.granule_bytes) == (8 * 2**30, 2 * 2**20)


def test_threads_are_the_cores_divided_between_all_workers_and_at_least_one() -> None:
    cores = len(os.sched_getaffinity(0))
    settings = settings_from({"model": "m"})
    assert settings.threads_of(1) == cores
    assert settings.threads_of(64) == max(1, cores // 64)
    assert settings_from({"model": "m", "threads": 7}).threads_of(2) == 7


def test_the_config_file_that_ships_states_every_default() -> None:
    assert settings_from_yaml(ROOT / "ray_config.yaml") == settings_from({"model": "gemma3-270m"})
    (application,) = yaml.safe_load((ROOT / "ray_config.yaml").read_text())["applications"]
    left_out = {"threads", "host_memory", "device_memory", "granule"}  # what they are depends on other settings
    left_out |= {"fallback", "max_num_waiting", "successor_grace_s"}  # an endpoint has defaults of its own
    left_out |= {"failpoints"}  # of tests
    left_out |= {"models", "api_key", "max_prompt_tokens"}  # examples, in comments
    assert application["args"].keys() == ServingSettings.model_fields.keys() - left_out


def test_the_config_file_that_ships_leaves_a_gpu_its_own_memory_and_granule() -> None:
    settings = settings_from_yaml(ROOT / "ray_config.yaml", {"devices": "cuda"})
    assert (settings.device_memory, settings.granule) == (None, None)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_yaml_s_words_for_true_and_false_are_on_and_off(tmp_path: Path) -> None:
    for word in ("on", "off"):
        file = write(tmp_path / "c.yaml", f"applications: [{{args: {{model: m, prefix_cache: {word}}}}}]")
        assert settings_from_yaml(file).prefix_cache == word


def test_host_pages_are_there_where_their_memory_is_named_or_the_fallback_needs_them() -> None:
    assert settings_from({"model": "m"}).host_memory_bytes is None
    assert settings_from({"model": "m", "fallback": "host"}).host_memory_bytes == 512 * MIB
    assert settings_from({"model": "m", "host_memory": "64MiB"}).host_memory_bytes == 64 * MIB


@pytest.mark.parametrize("values", [{"fallback": "host"}, {"host_memory": "1GiB"}])
def test_host_pages_are_refused_on_a_gpu_by_the_setting_that_asked_for_them(values: dict[str, str]) -> None:
    sentence = refusal(devices="cuda:0", **values)
    assert sentence.startswith(f"{next(iter(values))} is {next(iter(values.values()))}")
    assert "host pages are for models on the CPU" in sentence


def test_an_override_wins_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "applications: [{import_path: 'a:b', args: {model: m, max_num_seqs: 4}}]")
    assert settings_from_yaml(file, {"max_num_seqs": 8}).max_num_seqs == 8
    assert settings_from_yaml(file).max_num_seqs == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("aplications: []", "aplications is not a setting: did you mean applications?"),
        ("applications: []", "applications must be a list of one application"),
        ("applications: {}", "applications must be a list of one application"),
        ("model: m", "model stands in the wrong place: settings stand in the args of the application"),
        ("applications: [{model: m}]", "applications[0].model stands in the wrong place: settings stand in the args"),
        ("applications: [{arg: {}}]", "applications[0].arg is not a setting: did you mean args?"),
        ("applications: [{args: {model: m, max_num_seqs: 0}}]", "max_num_seqs is 0, and must be"),
        ("applications: [{args: {model: m, granul: 4KiB}}]", "granul is not a setting: did you mean granule?"),
        ("applications: [{args: [1]}]", "applications[0].args must be a mapping"),
        ("applications: [{args: {}}]", "model is missing"),
        ("applications: [3]", "applications[0] must be a mapping"),
        ("[1]", "the file must be a mapping"),
        ("", "the file must be a mapping"),
        ("a: [", "the file is not YAML in UTF-8 at line 1"),
    ],
)
def test_a_wrong_config_file_is_one_sentence_with_its_path_and_the_key(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = write(tmp_path / "c.yaml", text)
    with pytest.raises(ConfigError) as refused:
        settings_from_yaml(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_config_file_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not YAML in UTF-8"):
        settings_from_yaml(tmp_path / "binary")
    with pytest.raises(ConfigError, match="No such file"):
        settings_from_yaml(tmp_path / "none")
