"""Settings out of a Ray Serve config file, as ray_config.yaml is one: `args` of its one application.

The file's outer form is Serve's. Serve refuses some keys that it does not know and ignores others in silence, those of
a deployment among them; here each is refused, by name. What is wrong is one sentence, a ConfigError, that begins with
the file's path. A batch job and an endpoint read the same file: what concerns the endpoint alone is no matter to the
job. What a setting may be is in `kvcluster.config` and `kvcluster.serving_config`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kvcluster import serve_keys
from kvcluster.config import ConfigError, Settings, settings_of, unknown_setting
from kvcluster.serving_config import GATEWAY, OWN_NAMES, ServingSettings

IMPORT_PATH = "actors.serve_app:build"
LOOPBACK, PORT = "127.0.0.1", 8000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint as Serve is told of it, checked: `document` is a whole config, `settings` are those of its `args`."""

    settings: ServingSettings
    document: Mapping[str, Any]

    @property
    def application(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.document["applications"][0]
        return found

    @property
    def host(self) -> str:
        return str(self.document["http_options"]["host"])

    @property
    def port(self) -> int:
        return int(self.document["http_options"]["port"])


@dataclass(frozen=True, slots=True)
class Listening:
    """Where an endpoint is to listen, as far as somebody said; over the file, and over this machine's loopback."""

    host: str | None = None
    port: int | None = None

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        said = {name: value for name, value in (("host", self.host), ("port", self.port)) if value is not None}
        return {"host": LOOPBACK, "port": PORT, **given, **said}


@dataclass(frozen=True, slots=True)
class _File:
    """A file's document and its one application; both are mappings."""

    path: Path
    document: dict[str, Any]
    application: dict[str, Any] = field(default_factory=dict)

    @property
    def args(self) -> dict[str, Any]:
        return _mapping(self.application.get("args") or {}, f"{self.path}: applications[0].args")


def settings_from_yaml(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a batch job: `args` of the file's one application, where `overrides` win.

    Raises:
        ConfigError: the file cannot be read, has not this form, or a setting in it is wrong.
    """
    file = _read(Path(path))
    shared = {name: value for name, value in file.args.items() if name not in OWN_NAMES}
    return settings_of(Settings, {**shared, **(overrides or {})}, where=f"{path}: ")


def endpoint_from_yaml(path: str | Path, overrides: Mapping[str, Any], listening: Listening) -> Endpoint:
    """The endpoint that the file describes, where `overrides` win over its `args`.

    Raises:
        ConfigError: as `settings_from_yaml`; or a deployment is none of this application's, or has an unknown key.
    """
    file = _read(Path(path))
    args = file.args if "model" not in overrides else {k: v for k, v in file.args.items() if k != "models"}
    settings = settings_of(ServingSettings, {**args, **overrides}, where=f"{path}: ")
    _check_deployments(file.application.get("deployments") or [], settings, f"{path}: applications[0].deployments")
    http = _mapping(file.document.get("http_options") or {}, f"{path}: http_options")
    _refuse_unknown(http, serve_keys.HTTP_OPTIONS, f"{path}: http_options.")
    _check_keys(file.document.get("grpc_options"), serve_keys.GRPC_OPTIONS, f"{path}: grpc_options")
    _check_listening(http, f"{path}: http_options.")
    if file.application.get("import_path") != IMPORT_PATH:
        raise ConfigError(f"{path}: applications[0].import_path must be {IMPORT_PATH}, which builds this application")
    application = {"name": "default", "route_prefix": "/", **file.application, "args": {**args, **overrides}}
    document = {**file.document, "http_options": listening.options(http), "applications": [application]}
    return Endpoint(settings, document)


def endpoint_from(args: Mapping[str, Any], listening: Listening) -> Endpoint:
    """The endpoint of these settings, without a file. Raises ConfigError: one is wrong."""
    settings = settings_of(ServingSettings, args)
    application = {"name": "kvcluster", "route_prefix": "/", "import_path": IMPORT_PATH, "args": dict(args)}
    return Endpoint(settings, {"http_options": listening.options({}), "applications": [application]})


def _read(path: Path) -> _File:
    """The document, whose outer form is checked."""
    document = _mapping(_read_yaml(path), f"{path}: the file")
    _refuse_unknown(document, serve_keys.DOCUMENT, f"{path}: ")
    applications = document.get("applications")
    if not isinstance(applications, list) or len(applications) != 1:
        raise ConfigError(f"{path}: applications must be a list of one application, which holds our settings in args")
    application = _mapping(applications[0], f"{path}: applications[0]")
    _refuse_unknown(application, serve_keys.APPLICATION, f"{path}: applications[0].")
    return _File(path, document, application)


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
            raise ConfigError(where + unknown_setting(key, known, settings=ServingSettings.model_fields))


def _check_deployments(deployments: object, settings: ServingSettings, where: str) -> None:
    if not isinstance(deployments, list):
        raise ConfigError(f"{where} must be a list of deployments, each with its name")
    there = [GATEWAY, *settings.deployments]
    for number, each in enumerate(deployments):
        deployment = _mapping(each, f"{where}[{number}]")
        _check_name(deployment.get("name"), there, f"{where}[{number}].")
        _refuse_unknown(deployment, serve_keys.DEPLOYMENT, f"{where}[{number}].")
        for key, known in serve_keys.BELOW_DEPLOYMENT.items():
            _check_keys(deployment.get(key), known, f"{where}[{number}].{key}")


def _check_keys(value: object, known: Iterable[str], where: str) -> None:
    """Of a part of Serve's own that may be left out."""
    _refuse_unknown(_mapping(value or {}, where), known, f"{where}.")


def _check_name(name: object, there: list[str], where: str) -> None:
    if name in there:
        return
    near = difflib.get_close_matches(str(name), there, n=1)
    meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(there)}"
    raise ConfigError(f"{where}name is {str(name)[:100]!r}, and no deployment of this application: {meant}")


def _check_listening(http: Mapping[str, Any], where: str) -> None:
    host, port = http.get("host", LOOPBACK), http.get("port", PORT)
    if not isinstance(host, str) or not host:
        raise ConfigError(f"{where}host is {str(host)[:100]!r}, and must be an address, as {LOOPBACK}")
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65_535:
        raise ConfigError(f"{where}port is {str(port)[:100]!r}, and must be from 1 to 65535")
