"""Settings out of a Ray Serve config file, as ray_config.yaml is one: `args` of its one application.

The file's outer form is Serve's, and the keys that Serve knows are let be. What is wrong with it is one sentence, a
ConfigError, that begins with the file's path. What a setting may be is in `kvcluster.config`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from kvcluster.config import ConfigError, Settings, settings_from, unknown_setting

_SERVE_KEYS = (
    "applications",
    "proxy_location",
    "http_options",
    "grpc_options",
    "controller_options",
    "logging_config",
    "tracing_config",
    "target_capacity",
)
_APPLICATION_KEYS = (
    "name",
    "route_prefix",
    "import_path",
    "runtime_env",
    "host",
    "port",
    "deployments",
    "autoscaling_policy",
    "args",
    "logging_config",
    "external_scaler_enabled",
)


def settings_from_yaml(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a Ray Serve config file: `args` of its one application, where `overrides` win.

    Serve ignores keys that it does not know, so a mistyped one would be lost in silence; here it is refused.

    Raises:
        ConfigError: the file cannot be read, has not this form, or a setting in it is wrong.
    """
    document = _mapping(_read_yaml(Path(path)), f"{path}: the file")
    _refuse_unknown(document, _SERVE_KEYS, f"{path}: ")
    applications = document.get("applications")
    if not isinstance(applications, list) or len(applications) != 1:
        raise ConfigError(f"{path}: applications must be a list of one application, which holds our settings in args")
    application = _mapping(applications[0], f"{path}: applications[0]")
    _refuse_unknown(application, _APPLICATION_KEYS, f"{path}: applications[0].")
    args = _mapping(application.get("args") or {}, f"{path}: applications[0].args")
    return settings_from({**args, **(overrides or {})}, where=f"{path}: ")


def _read_yaml(path: Path) -> object:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: the file cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError: no UTF-8, or the 31st of February
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}: the file is not YAML in UTF-8{line}") from None


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{what} must be a mapping of names to values")
    return value


def _refuse_unknown(mapping: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in mapping:
        if key not in known:
            raise ConfigError(where + unknown_setting(key, known))
