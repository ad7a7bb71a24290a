"""Every setting of ours, in one frozen value, and how a person's text becomes one.

The same settings are `args` in ray_config.yaml and options of `kvcluster run-batch` (`device_memory` there is
`--device-memory` here), and an option wins over the file. Names that vLLM's users know mean the same. A wrong
value is one sentence, a ConfigError, that names the setting, what it was and what is allowed.

What needs a model's geometry (is the memory large enough for one request?) is not decided here: see
`kvcluster.services.memory_check`; nor what only a GPU can say (its memory, its granule): see `actors.gpus`. The file is
read in `kvcluster.config_file`.
"""

from __future__ import annotations

import difflib
import mmap
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from kvcluster.failpoints import checked
from kvcluster.units import GIB, format_bytes, parse_bytes

_DEVICES = re.compile(r"(?:host|cuda)(?::(\d+(?:,\d+)*))?", re.ASCII)
_SHOWN_CHARACTERS = 100  # of a wrong value
_SECRET = frozenset({"api_key"})  # whose wrong values are not shown
_DEVICES_RULE = "must be host or cuda, alone or with numbers, each once, as in host:0,1 or cuda:0"
_ONE_KIND_RULE = "must be host or cuda devices, and not both: run a job for each"
_HOST_SIZES = {"device_memory": "512MiB", "granule": "64KiB"}
_HOST_MEMORY = "512MiB"
_PAGES_RULE = "host pages are for models on the CPU: leave it out with cuda devices, or choose host devices"


class ConfigError(ValueError):
    """A setting, or the file of them, is wrong. One sentence; nothing was started."""


class Backend(StrEnum):
    """What a device's memory is."""

    HOST = "host"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Sizes:
    """A device's memory, and by how much it is given."""

    capacity_bytes: int
    granule_bytes: int


def _devices(text: str) -> str:
    if all(kind in text for kind in Backend):
        raise ValueError(_ONE_KIND_RULE)
    match = _DEVICES.fullmatch(text)
    numbers = [int(number) for number in match[1].split(",")] if match and match[1] else []
    if match is None or len(set(numbers)) != len(numbers):
        raise ValueError(_DEVICES_RULE)
    return text


def _as_text(value: object) -> object:
    """A whole number of bytes is a size too; anything else that is no text is left to be refused."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _size(text: str) -> str:
    try:
        size_bytes = parse_bytes(text)
    except (ValueError, OverflowError):
        size_bytes = 0
    if not 0 < size_bytes < 2**63:
        raise ValueError("must be a size such as 512MiB, with KiB, MiB or GiB")
    return text


def _granule(text: str) -> str:
    size_bytes = parse_bytes(_size(text))
    if size_bytes & (size_bytes - 1) or not mmap.PAGESIZE <= size_bytes <= GIB:
        raise ValueError(f"must be a power of two from {format_bytes(mmap.PAGESIZE)} to 1 GiB, as in 64KiB")
    return text


def _switch(value: object) -> object:
    """In YAML the words on and off are true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _nodes(value: object) -> object:
    count = int(value) if isinstance(value, str) and value.isdecimal() else value
    if value == "all" or (isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= 4_096):
        return count
    raise ValueError("must be how many nodes, 1 or more, or all")


Switch = Annotated[Literal["on", "off"], BeforeValidator(_switch)]
Size = Annotated[str, BeforeValidator(_as_text), AfterValidator(_size)]
Granule = Annotated[str, BeforeValidator(_as_text), AfterValidator(_granule)]
Tenant = Annotated[str, Field(max_length=64)]
Devices = Annotated[str, AfterValidator(_devices)]
Nodes = Annotated[int | Literal["all"], BeforeValidator(_nodes)]
Count = Annotated[int, Field(ge=1, le=2**20)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Failpoints = Annotated[str, AfterValidator(checked)]


class Settings(BaseModel):
    """Validated settings. `*_s` are seconds; sizes are text here and bytes in the properties of the same name."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", protected_namespaces=())

    model: Annotated[str, Field(min_length=1)]
    devices: Devices = "host"
    device_memory: Size | None = None  # of a GPU the most; None leaves it to gpu_memory_utilization
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9  # of what is free on it beside the model
    tenant_quotas: dict[Tenant, Size] = Field(default_factory=dict)  # a tenant's most of a device, or of host pages
    workers_per_device: Annotated[int, Field(ge=1, le=64)] = 1
    nodes: Nodes = 1  # with these devices each: this one, or so many of the cluster that is joined
    max_restarts: Annotated[int, Field(ge=0, le=1_000)] = 3  # of one worker, over the whole job
    threads: Annotated[int, Field(ge=1, le=1_024)] | None = None  # of one worker; None divides the cores

    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    model_impl: Literal["auto", "transformers"] = "auto"  # auto: a forward of our own, where there is one
    batch_invariant: Switch = "off"  # on: in bfloat16 too no text depends on what is computed beside it
    layout: Literal["token-major", "seq-major", "head-major"] = "token-major"
    granule: Granule | None = None  # None, on a GPU alone: what it recommends

    max_num_seqs: Annotated[int, Field(ge=1, le=4_096)] = 16
    max_num_waiting: Annotated[int, Field(ge=0, le=2**20)] | None = None  # of one worker; None: a job's wait, all
    max_num_batched_tokens: Count = 512
    prefill_chunk_tokens: Count = 256
    margin_steps: Annotated[int, Field(ge=1, le=4_096)] = 16

    prefix_cache: Switch = "on"  # what was computed is kept for requests that begin alike
    fallback: Literal["host", "wait", "refuse"] = "wait"  # what becomes of a request that the device refuses
    host_memory: Size | None = None  # of a node's host pages; None: there are none, but where fallback is host
    block_size: Annotated[int, Field(ge=1, le=1_024)] = 16  # tokens of a host page

    lease_s: Seconds = 30.0
    heartbeat_s: Seconds = 5.0
    grant_s: Seconds = 5.0
    successor_grace_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 60.0  # 0: begin again
    retry_after_min_s: Seconds = 0.1
    retry_after_max_s: Seconds = 30.0
    idle_exit_s: Seconds = 60.0

    failpoints: Failpoints = ""  # of fault tests: for the job, its workers, and owners that it makes

    @model_validator(mode="before")
    @classmethod
    def _with_host_sizes(cls, values: dict[str, Any]) -> dict[str, Any]:
        """On the host memory and granule have a size of their own; a GPU says itself what it has."""
        if str(values.get("devices")).startswith(Backend.CUDA):
            return values
        return values | {name: size for name, size in _HOST_SIZES.items() if values.get(name) is None}

    @model_validator(mode="after")
    def _fit_together(self) -> Settings:
        _together(
            self.max_num_batched_tokens >= self.max_num_seqs, self, "max_num_batched_tokens at least max_num_seqs"
        )
        _together(self.heartbeat_s < self.lease_s, self, "heartbeat_s less than lease_s")
        _together(self.retry_after_min_s <= self.retry_after_max_s, self, "retry_after_min_s at most retry_after_max_s")
        if self.backend is Backend.CUDA and self.host_memory_bytes is not None:
            name = "fallback" if self.fallback == "host" else "host_memory"
            raise ValueError(f"{name} is {getattr(self, name)}, and {_PAGES_RULE}")
        if self.device_memory_bytes is not None and self.granule_bytes is not None:
            _together(self.device_memory_bytes % self.granule_bytes == 0, self, "device_memory a multiple of granule")
        return self

    @property
    def backend(self) -> Backend:
        return Backend(self.devices.partition(":")[0])

    @property
    def device_numbers(self) -> tuple[int, ...] | None:
        """Those named; None for "cuda", which is every GPU that there is. "host" is "host:0"."""
        numbers = self.devices.partition(":")[2] or ("0" if self.backend is Backend.HOST else "")
        return tuple(int(number) for number in numbers.split(",")) if numbers else None

    @property
    def device_names(self) -> tuple[str, ...]:
        """One name a device that is named: "host:0,1" is "host:0" and "host:1"; "cuda" names none."""
        return tuple(f"{self.backend}:{number}" for number in self.device_numbers or ())

    @property
    def device_memory_bytes(self) -> int | None:
        return parse_bytes(self.device_memory) if self.device_memory else None

    @property
    def granule_bytes(self) -> int | None:
        return parse_bytes(self.granule) if self.granule else None

    @property
    def host_memory_bytes(self) -> int | None:
        """Of host pages; None where there are none."""
        default = _HOST_MEMORY if self.fallback == "host" else None
        text = self.host_memory or default
        return parse_bytes(text) if text else None

    @property
    def tenant_quota_bytes(self) -> dict[str, int]:
        return {tenant: parse_bytes(size) for tenant, size in self.tenant_quotas.items()}

    @property
    def host_sizes(self) -> Sizes:
        """Those of a host device."""
        texts = (self.device_memory or _HOST_SIZES["device_memory"], self.granule or _HOST_SIZES["granule"])
        return Sizes(*map(parse_bytes, texts))

    def threads_of(self, workers: int) -> int:
        """Threads of each of so many workers: as set, or this process's cores divided between them, at least 1."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // workers)


def _together(holds: bool, settings: Settings, rule: str) -> None:
    """`rule` is "one-setting how another-setting"."""
    if not holds:
        one, *how, other = rule.split()
        values = f"{one} is {getattr(settings, one)}, and must be {' '.join(how)} {other}, which is"
        raise ValueError(f"{values} {getattr(settings, other)}")


S = TypeVar("S", bound=Settings)


def settings_from(values: Mapping[str, Any], *, where: str = "") -> Settings:
    """Validated settings of `values`, the rest at their defaults. `where` begins the sentence of an error.

    Raises:
        ConfigError: a value is wrong or its name unknown.
    """
    return settings_of(Settings, values, where=where)


def settings_of(kind: type[S], values: Mapping[str, Any], *, where: str = "") -> S:
    """The same of a `kind` that has more settings. Raises as `settings_from`."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as wrong:
        raise ConfigError(where + _sentence(wrong.errors()[0], kind.model_fields)) from None


def unknown_setting(key: str, known: Iterable[str], *, settings: Iterable[str] = ()) -> str:
    """What is said of a name that is none of `known`: where `settings` stand, or which one was meant."""
    if key in settings:
        return f"{key} stands in the wrong place: settings stand in the args of the application, as in ray_config.yaml"
    near = difflib.get_close_matches(key, list(known), n=1)
    return f"{key} is not a setting" + (f": did you mean {near[0]}?" if near else "; remove it")


def _sentence(error: Mapping[str, Any], known: Iterable[str]) -> str:
    """One of pydantic's errors as our sentence."""
    name = _place(error["loc"])
    if error["type"] == "extra_forbidden":
        return unknown_setting(name, known)
    if error["type"] == "missing":
        return f"{name} is missing: name it with --{name.replace('_', '-')} or in the config file"
    rule = re.sub(r"^\w+ should", "must", error["msg"].removeprefix("Value error, "))
    if name in _SECRET:
        return f"{name} {rule.removeprefix('Input ')}"
    return f"{name} is {_shown(error['input'])}, and {rule}" if name else rule


def _place(location: Sequence[int | str]) -> str:
    """The setting, and in a mapping the key whose value is wrong, where that can be shown."""
    keys = [str(part) for part in location]
    can_be_shown = all(key.isprintable() and len(key) <= _SHOWN_CHARACTERS for key in keys)
    return ".".join(keys if can_be_shown and "[key]" not in keys else keys[:1])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
