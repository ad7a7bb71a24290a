"""GPUs: which there are, and whether their memory can be mapped and shared as kvcluster needs it.

Each is opened for a moment, because a container may forbid what the device offers; its context, some hundred MiB of
the GPU's memory, stays until this process ends.

Windows' driver model (WDDM, in WSL too) is not supported: over budget it moves memory out to the host instead of
refusing, so that nothing crashes and everything becomes absurdly slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvcluster.driver.cuda import CudaDevice, cuda_devices, cuda_support, open_cuda_driver
from kvcluster.errors import DeviceMissing, KvClusterError
from kvcluster.services.doctor.finding import Finding, note, ok, problem
from kvcluster.units import format_bytes

_BROKEN = "see what nvidia-smi says: the library and the kernel's module must be of one version"


def findings(root: Path = Path("/")) -> Iterator[Finding]:
    yield from windows(root)
    yield from gpus()


def windows(root: Path) -> Iterator[Finding]:
    """Nothing, where this is no Linux inside Windows."""
    version = (root / "proc/version").read_text(errors="replace").lower()
    if "microsoft" in version or (root / "dev/dxg").exists():
        sentence = "this is WSL: its GPUs are under Windows' driver model (WDDM), which is not supported, because over "
        slow = "budget it does not refuse memory but moves it to the host, and becomes absurdly slow."
        remedy = "use Linux itself for GPUs; host devices work here"
        yield problem("WSL", sentence + slow, remedy=remedy)


def gpus() -> Iterator[Finding]:
    """One for each GPU that this process sees, or one that says why there is none."""
    try:
        devices = cuda_devices()
    except DeviceMissing as missing:
        yield note("GPU", f"none can be used: {missing.reason}.", remedy=missing.remedy)
        return
    except KvClusterError as broken:
        yield problem("GPU", f"CUDA is there and does not work: {broken}.", remedy=_BROKEN)
        return
    for device in devices:
        yield _gpu(device)
    if not devices:
        remedy = "use the host device, or let this process see one (CUDA_VISIBLE_DEVICES, the container's devices)"
        yield note("GPU", "CUDA is there and this process sees no GPU.", remedy=remedy)


def _gpu(device: CudaDevice) -> Finding:
    named = f"cuda:{device.ordinal} ({device.name}, {device.uuid})"
    try:
        support = cuda_support(device)
        driver = open_cuda_driver(device.uuid)
        try:
            free_bytes = driver.memory_info().free_bytes
        finally:
            driver.close()
    except DeviceMissing as missing:
        return problem("GPU", f"{named} cannot be used: {missing.reason}.", remedy=missing.remedy)
    except KvClusterError as broken:
        return problem("GPU", f"{named} cannot be opened: {broken}.", remedy=_BROKEN)
    memory = f"{format_bytes(free_bytes)} of {format_bytes(device.total_bytes)} are free"
    granules = f"granules of {format_bytes(support.granule_bytes)} (best {format_bytes(support.recommended_bytes)})"
    return ok("GPU", f"{named}: {memory}; {granules}, mapped at will and shared by POSIX descriptors.")
