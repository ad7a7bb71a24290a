"""Decode attention over the three layouts beside contiguous tensors: bytes of K and V over time.

torch's attention, one query token of 32 heads over 8 KV heads of 128, batch 8, context 4,096, bfloat16, 32 layers (or
as many as fit) one after another, so that no cache holds what is read next. The four query heads of a KV head are given
as four rows. The sequences of a batch lie at equal distances, so that one call takes them all, as it takes contiguous
ones. Arms in turn; a ratio is that of one round. Token-major's target is 0.95 of contiguous.

What torch chooses by itself decides; its kernels one by one are told beside it. `issued_us` is the CPU's part of a
call: where it is more than the GPU's, the GPU waited. Never run without a GPU.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_check.setting import Broken, Found, Setting, Skipped
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.protocol import Access, Driver
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.services.device_settings import bulk_bytes_for
from kvcluster.transaction import Progress
from kvcluster.units import ceil_div

if TYPE_CHECKING:
    import torch

    Pair = tuple[torch.Tensor, torch.Tensor]

MOST_LAYERS, KV_HEADS, ROWS, DIM, BATCH, TOKENS = 32, 8, 4, 128, 8, 4096
TARGET = 0.95
ROUNDS = 20
MOST_OF_FREE = 0.6
MOST_ERROR = 2e-3  # results are some 0.03 each; two kernels in bfloat16 differ by 1e-4
CONTIGUOUS, BY_ITSELF = "contiguous", "as torch chooses"


@dataclass(frozen=True, slots=True)
class Arm:
    """K and V a layer, each [batch, KV heads, tokens, dim]."""

    layers: list[Pair]
    query: torch.Tensor

    def step(self) -> torch.Tensor:
        """The last layer's result; every layer is computed."""
        from torch.nn.functional import scaled_dot_product_attention

        for k, v in self.layers:
            found = scaled_dot_product_attention(self.query, k, v)
        return found

    @property
    def read_bytes(self) -> int:
        return sum(k.nbytes + v.nbytes for k, v in self.layers)


def check(setting: Setting) -> Found:
    """
    Raises:
        Skipped: no torch here that computes on this GPU.
        Broken: a layout gives another result than contiguous tensors do, or torch takes them not at all.
    """
    _check_torch(setting)
    driver = open_cuda_driver(setting.device)
    layers = _layers_that_fit(driver)
    arms = _arms(driver, setting, layers)
    errors = {str(name): _error(arm, arms[CONTIGUOUS]) for name, arm in arms.items()}
    figures: dict[str, Any] = {"layers": layers, "largest_error": errors, "target": TARGET}
    if max(errors.values()) > MOST_ERROR:
        raise Broken(f"a layout gives other results: {errors}", figures)
    figures |= {name: _compared(arms, backend) for name, backend in _backends().items()}
    told = figures[BY_ITSELF]
    if "refused" in told:
        raise Broken(f"torch's attention failed: {told['refused']}", figures)
    ratios = ", ".join(f"{layout} {told[layout]['ratio']:.3f}" for layout in Layout)
    return Found(f"of contiguous ({told[CONTIGUOUS]['gb_s']:.0f} GB/s): {ratios}", figures)


def _check_torch(setting: Setting) -> None:
    if setting.is_stand_in:
        raise Skipped("torch computes on no stand-in")
    if importlib.util.find_spec("torch") is None:
        raise Skipped("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        raise Skipped(f"torch {torch.__version__} sees no GPU")


def _layers_that_fit(driver: Driver) -> int:
    """Contiguous, token-major, seq-major, and head-major whose fragments may fill half their last granule."""
    layer_bytes = 2 * BATCH * KV_HEADS * TOKENS * DIM * 2
    fragment_bytes, granule_bytes = TOKENS * DIM * 2, driver.granularity_bytes
    head_major_bytes = 2 * BATCH * KV_HEADS * ceil_div(fragment_bytes, granule_bytes) * granule_bytes
    needed = 3 * layer_bytes + head_major_bytes
    return max(1, min(MOST_LAYERS, int(MOST_OF_FREE * driver.memory_info().free_bytes) // needed))


def _arms(driver: Driver, setting: Setting, layers: int) -> dict[str, Arm]:
    import torch

    device = torch.device("cuda", setting.ordinal)
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    query = torch.randn(BATCH, KV_HEADS, ROWS, DIM, dtype=torch.bfloat16, device=device)
    shape = (BATCH, KV_HEADS, TOKENS, DIM)
    plain = [_pair(lambda: torch.randn(shape, dtype=torch.bfloat16, device=device)) for _ in range(layers)]
    arms = {CONTIGUOUS: Arm(plain, query)}
    for layout in Layout:
        mapped = _mapped_pairs(driver, layout, layers, device)
        for (k, v), (plain_k, plain_v) in zip(mapped, plain, strict=True):
            k.copy_(plain_k)
            v.copy_(plain_v)
        arms[layout] = Arm(mapped, query)
    torch.cuda.synchronize()
    return arms


def _pair(make: Callable[[], torch.Tensor]) -> Pair:
    return make(), make()


def _mapped_pairs(driver: Driver, layout: Layout, layers: int, device: torch.device) -> list[Pair]:
    """A batch in memory of our own, every granule of it mapped: the sequences' ranges one behind the other."""
    import torch

    from kvcluster.tensors.memory import memory_at
    from kvcluster.tensors.views import kv_views

    geometry = KvGeometry.uniform(layers=layers, kv_heads=KV_HEADS, head_dim=DIM, element_bytes=2)
    range_map = RangeMap(Shape.of(geometry, layout, driver.granularity_bytes), TOKENS)
    address = _filled(driver, BATCH * range_map.size_bytes)
    memory = memory_at(address, BATCH * range_map.size_bytes, torch.bfloat16, device)
    one = kv_views(address, range_map, geometry, layout, tokens=TOKENS, dtype=torch.bfloat16, device=device)
    pitch = range_map.size_bytes // 2

    def batched(view: torch.Tensor) -> torch.Tensor:
        return memory.as_strided((BATCH, *view.shape), (pitch, *view.stride()), view.storage_offset())

    return [(batched(k), batched(v)) for k, v in zip(one.k, one.v, strict=True)]


def _filled(driver: Driver, size_bytes: int) -> int:
    """A range full of memory that can be written, in bulk handles as far as they go."""
    address = driver.reserve(size_bytes)
    bulk_bytes = bulk_bytes_for(driver.granularity_bytes) or driver.granularity_bytes
    here, end = address, address + size_bytes
    while here < end:
        handle = driver.create(min(bulk_bytes, end - here))
        driver.map(here, [handle], Progress())
        here += handle.size_bytes
    driver.set_access(address, size_bytes, Access.READ_WRITE)
    return address


def _error(arm: Arm, plain: Arm) -> float:
    return float((arm.step().float() - plain.step().float()).abs().max())


def _backends() -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)
    found: dict[str, Callable[[], AbstractContextManager[Any]]] = {BY_ITSELF: nullcontext}
    return found | {str(kernel.name).lower(): partial(sdpa_kernel, kernel) for kernel in kernels}


def _compared(arms: Mapping[str, Arm], backend: Callable[[], AbstractContextManager[Any]]) -> dict[str, Any]:
    """Every arm once a round; the sentence of torch's refusal where this kernel does not take such tensors."""
    try:
        with backend():
            times = _rounds(arms)
    except RuntimeError as refusal:
        return {"refused": str(refusal).splitlines()[0]}
    return {str(name): _told(arms[name], times[name], times[CONTIGUOUS]) for name in arms}


def _told(arm: Arm, times: list[tuple[float, float]], plain: list[tuple[float, float]]) -> dict[str, float]:
    """Of (GPU's seconds, CPU's seconds to issue) a round."""
    median = statistics.median(gpu for gpu, _ in times)
    return {
        "gb_s": round(arm.read_bytes / median / 1e9, 1),
        "ratio": round(
            statistics.median(theirs / ours for (ours, _), (theirs, _) in zip(times, plain, strict=True)), 4
        ),
        "call_us": round(median * 1e6 / len(arm.layers), 2),
        "issued_us": round(statistics.median(cpu for _, cpu in times) * 1e6 / len(arm.layers), 2),
    }


def _rounds(arms: Mapping[str, Arm]) -> dict[str, list[tuple[float, float]]]:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(-3, ROUNDS):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            found = _timed(arms[name])
            if number >= 0:  # the others are the warm-up
                times[name].append(found)
    return times


def _timed(arm: Arm) -> tuple[float, float]:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start = time.perf_counter()
    begin.record()
    arm.step()
    end.record()
    issued_s = time.perf_counter() - start
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3, issued_s
