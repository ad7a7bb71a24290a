"""Huge pages of shared memory: first touch of 2 MiB costs 32 us with them and 1,085 us without (measured).

A memfd gets transparent huge pages only where shmem_enabled says so, which is another switch than that of ordinary
memory. Whether they really come is tried, with the driver that a device uses. Reserved ones (hugetlb) help nobody
here: they are taken from what a device may have.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Access
from kvcluster.errors import KvClusterError
from kvcluster.services.doctor.finding import Finding, note, ok
from kvcluster.transaction import Progress
from kvcluster.units import KIB, MIB, format_bytes

_SWITCHES = Path("sys/kernel/mm/transparent_hugepage")
_MOST_TRIED_BYTES = 32 * MIB  # where pages are large, huge ones are 512 MiB
_REMEDY = "as root: echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled, and use --granule 2MiB"


def findings(root: Path = Path("/")) -> Iterator[Finding]:
    yield transparent(root)
    yield from reserved(root)


def transparent(root: Path) -> Finding:
    """The switches, and whether a granule of that size came in one page."""
    switches = _switches(root)
    if "shmem_enabled" not in switches:
        return note("huge pages", "this kernel has none for shared memory.", remedy="nothing, or another kernel")
    size_bytes = _number(root / _SWITCHES / "hpage_pmd_size")
    came = 0 < size_bytes <= _MOST_TRIED_BYTES and in_huge_pages(size_bytes)
    size, said = format_bytes(size_bytes), ", ".join(f"{name} is {value}" for name, value in switches.items())
    if came:
        return ok("huge pages", f"granules of {size} come in huge pages ({said}).")
    return note("huge pages", f"granules of {size} come in small pages ({said}).", remedy=_REMEDY)


def reserved(root: Path) -> Iterator[Finding]:
    """Nothing, where nothing is set aside."""
    for folder in sorted((root / "sys/kernel/mm/hugepages").glob("hugepages-*kB")):
        taken_bytes = _number(folder / "nr_hugepages") * int(folder.name[len("hugepages-") : -len("kB")]) * KIB
        if taken_bytes:
            sentence = f"{format_bytes(taken_bytes)} are reserved as {folder.name} (hugetlb), which devices cannot use."
            yield note("reserved huge pages", sentence, remedy="give them back: sysctl -w vm.nr_hugepages=0")


def in_huge_pages(size_bytes: int) -> bool:
    """Whether a host device's granule of that size is mapped by huge pages once it is touched; False if it fails."""
    with suppress(KvClusterError), ExitStack() as undo:
        driver = open_host_driver(capacity_bytes=size_bytes, granule_bytes=size_bytes)
        undo.callback(driver.close)
        address = driver.reserve(size_bytes)
        undo.callback(driver.free_address, address, size_bytes)
        handle = driver.create(size_bytes)
        undo.callback(driver.release, handle)
        driver.map(address, [handle], Progress())
        undo.callback(driver.unmap, address, size_bytes)
        driver.set_access(address, size_bytes, Access.READ_WRITE)
        ctypes.memset(address, 1, size_bytes)
        return _huge_bytes(address) == size_bytes
    return False


def _huge_bytes(address: int) -> int:
    """Of the mapping that begins at `address`, by the kernel's word."""
    smaps = Path("/proc/self/smaps").read_text()
    found = re.search(rf"^{address:x}-.*?^ShmemPmdMapped:\s+(\d+) kB", smaps, flags=re.MULTILINE | re.DOTALL)
    return int(found[1]) * KIB if found else 0


def _switches(root: Path) -> dict[str, str]:
    """Each switch with what is chosen: the word in brackets."""
    found = {}
    for name in ("shmem_enabled", "enabled"):
        file = root / _SWITCHES / name
        if file.exists() and (chosen := re.search(r"\[(\w+)\]", file.read_text())):
            found[name] = chosen[1]
    return found


def _number(file: Path) -> int:
    return int(file.read_text()) if file.exists() else 0
