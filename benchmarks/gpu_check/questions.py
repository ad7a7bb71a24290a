"""What a real driver does where documentation is silent, or where our rules are stricter: each question a function.

A question asks CUDA directly, tells codes, and judges nothing. It runs in a process of its own (`python -m
benchmarks.gpu_check.questions NAME ORDINAL`), because an answer may cost the context. Its first docstring line is the
question. `probes` puts them, to the GPU and to the stand-in, whose rules come from documentation.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable

from benchmarks.gpu_check.kernel import Counting
from benchmarks.gpu_check.raw import Answer, Raw, ask, must
from benchmarks.gpu_check.setting import Skipped

Answers = dict[str, str]
SPAN_S = 0.5


def set_access_on_part_of_a_mapping(raw: Raw) -> Answers:
    """Can access be set on a part of a mapping?"""
    mapped = raw.mapped(2)
    return {
        "the first half": str(raw.set_access(mapped.address, raw.granule, writes=True)),
        "a copy into it": _copy_in(mapped.address),
        "a copy into the other": _copy_in(mapped.address + raw.granule),
        "the whole": str(raw.set_access(mapped.address, 2 * raw.granule, writes=True)),
    }


def set_access_over_a_run(raw: Raw) -> Answers:
    """Can access be set on adjacent mappings in one call, and beyond them?"""
    start = _run_of(raw, 3, reserved=4)
    return {
        "three mappings": str(raw.set_access(start, 3 * raw.granule, writes=True)),
        "and a hole behind them": str(raw.set_access(start, 4 * raw.granule, writes=True)),
        "no access at all": str(ask("cuMemSetAccess", start, raw.granule, [], 0)),
    }


def map_part_of_a_handle(raw: Raw) -> Answers:
    """Can a part of a handle be mapped?"""
    handle, start = raw.create(2 * raw.granule), raw.reserve(2 * raw.granule)
    return {
        "its first half": str(ask("cuMemMap", start, raw.granule, 0, handle, 0)),
        "its second half, by an offset": str(ask("cuMemMap", start + raw.granule, raw.granule, raw.granule, handle, 0)),
    }


def unmap_in_other_pieces(raw: Raw) -> Answers:
    """Does unmapping take several mappings, a part of one, or nothing?"""
    start, large = _run_of(raw, 3, reserved=3), raw.mapped(2)
    return {
        "two of three": str(ask("cuMemUnmap", start, 2 * raw.granule)),
        "one, and what is unmapped before it": str(ask("cuMemUnmap", start, 3 * raw.granule)),
        "half of one": str(ask("cuMemUnmap", large.address, raw.granule)),
        "nothing": str(ask("cuMemUnmap", raw.reserve(raw.granule), raw.granule)),
    }


def free_an_address_with_a_mapping(raw: Raw) -> Answers:
    """Is an address freed while something is mapped in it?"""
    mapped = raw.writable(2)
    return {
        "all of it": str(ask("cuMemAddressFree", mapped.address, mapped.size_bytes)),
        "a copy into it afterwards": _copy_in(mapped.address),
        "half of it": str(ask("cuMemAddressFree", mapped.address, raw.granule)),
    }


def release_twice(raw: Raw) -> Answers:
    """What does releasing a handle twice do? (Documented as undefined.)"""
    mapped, unmapped = raw.writable(), raw.create(raw.granule)
    return {
        "a mapped one": str(ask("cuMemRelease", mapped.handle)),
        "again": str(ask("cuMemRelease", mapped.handle)),
        "a copy into it": _copy_in(mapped.address),
        "an unmapped one": str(ask("cuMemRelease", unmapped)),
        "again, unmapped": str(ask("cuMemRelease", unmapped)),
        "the next create": str(ask("cuMemCreate", raw.granule, raw.property, 0)),
    }


def copy_to_nothing(raw: Raw) -> Answers:
    """What do copies to and from an address with nothing mapped say, and does the context live on?"""
    return _touched(raw.reserve(raw.granule), raw)


def copy_without_access(raw: Raw) -> Answers:
    """What do copies to and from a mapping without access say, and does the context live on?"""
    return _touched(raw.mapped().address, raw)


def copy_to_read_only(raw: Raw) -> Answers:
    """What do copies into a mapping for reading say, and does the context live on?"""
    mapped = raw.mapped()
    must("cuMemSetAccess", mapped.address, mapped.size_bytes, raw.access_to(writes=False), 1)
    return _touched(mapped.address, raw)


def reserve_odd_sizes(raw: Raw) -> Answers:
    """Are addresses reserved in sizes that are no multiple of the granule? (Documented: of the page.)"""
    found = {}
    for name, size_bytes in (("a page", 4096), ("64 KiB", 1 << 16), ("a granule and a page", raw.granule + 4096)):
        made = ask("cuMemAddressReserve", size_bytes, 0, 0, 0)
        found[name] = str(made)
        if not made.code:
            found[f"{name}, freed"] = str(ask("cuMemAddressFree", int(made.value), size_bytes))
    return found


def close_on_exec(raw: Raw) -> Answers:
    """Is an exported descriptor closed on exec, and does an import outlive the descriptor?"""
    mapped = raw.writable()
    descriptor = raw.export(mapped.handle)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFD)
    imported = ask("cuMemImportFromShareableHandle", descriptor, raw.kind)
    os.close(descriptor)
    return {
        "close-on-exec": "set" if flags & fcntl.FD_CLOEXEC else "not set",
        "import in the same process": str(imported),
        "release of the import": str(ask("cuMemRelease", imported.value)),
        "the exporter's own": str(ask("cuMemRelease", mapped.handle)),
    }


def map_an_import_larger(raw: Raw) -> Answers:
    """Is an imported handle mapped at a size that it does not have? (Nothing tells an importer the size.)"""
    descriptor, start = raw.export(raw.create(raw.granule)), raw.reserve(2 * raw.granule)
    imported = must("cuMemImportFromShareableHandle", descriptor, raw.kind)
    os.close(descriptor)
    return {"twice its size": str(ask("cuMemMap", start, 2 * raw.granule, 0, imported, 0))}


def import_something_else(raw: Raw) -> Answers:
    """What does importing a descriptor of something else say?"""
    with open(os.devnull, "rb") as file:
        return {"/dev/null": str(ask("cuMemImportFromShareableHandle", file.fileno(), raw.kind))}


def store_of_a_kernel_into_read_only(raw: Raw) -> Answers:
    """Does a kernel's store into a mapping for reading fault, and does the context live on?"""
    mapped = raw.mapped()
    must("cuMemSetAccess", mapped.address, mapped.size_bytes, raw.access_to(writes=False), 1)
    return {"launch": str(Counting().launch(mapped.address, 0)), "wait": str(ask("cuCtxSynchronize"))} | _lives(raw)


def store_of_a_kernel_into_nothing(raw: Raw) -> Answers:
    """Does a kernel's store into a reserved address with nothing mapped fault?"""
    start = raw.reserve(raw.granule)
    return {"launch": str(Counting().launch(start, 0)), "wait": str(ask("cuCtxSynchronize"))} | _lives(raw)


def unmap_beside_a_kernel(raw: Raw) -> Answers:
    """Which calls wait for a kernel of half a second that uses other memory?"""
    counting, busy, other = Counting(), raw.writable(), raw.writable()
    start = raw.reserve(raw.granule)
    counting.launch(busy.address, SPAN_S)
    handle = raw.create(raw.granule)
    return {
        "create": _timed("cuMemCreate", raw.granule, raw.property, 0),
        "map": _timed("cuMemMap", start, raw.granule, 0, handle, 0),
        "set_access": _timed("cuMemSetAccess", start, raw.granule, raw.access_to(writes=True), 1),
        "export": _timed("cuMemExportToShareableHandle", other.handle, raw.kind, 0),
        "memory_info": _timed("cuMemGetInfo"),
        "reserve": _timed("cuMemAddressReserve", raw.granule, 0, 0, 0),
        "the kernel meanwhile": "still runs" if ask("cuStreamQuery", 0).code == _NOT_READY else "has ended",
        "unmap of other memory": _timed("cuMemUnmap", other.address, other.size_bytes),
        "release of other memory": _timed("cuMemRelease", other.handle),
        "the kernel then": "still runs" if ask("cuStreamQuery", 0).code == _NOT_READY else "has ended",
        "wait": _timed("cuCtxSynchronize"),
    }


def unmap_under_a_kernel(raw: Raw) -> Answers:
    """Does unmapping wait for a kernel of half a second that uses the memory, or take it away?"""
    counting, busy = Counting(), raw.writable()
    counting.launch(busy.address, SPAN_S)
    found = {
        "unmap": _timed("cuMemUnmap", busy.address, busy.size_bytes),
        "the kernel then": "still runs" if ask("cuStreamQuery", 0).code == _NOT_READY else "has ended",
        "wait": _timed("cuCtxSynchronize"),
    }
    return found | _lives(raw)


def set_access_under_a_kernel(raw: Raw) -> Answers:
    """Does taking writes away wait for a kernel of half a second that writes the memory, or end it?"""
    counting, busy = Counting(), raw.writable()
    counting.launch(busy.address, SPAN_S)
    found = {
        "set_access": _timed("cuMemSetAccess", busy.address, busy.size_bytes, raw.access_to(writes=False), 1),
        "wait": _timed("cuCtxSynchronize"),
    }
    return found | _lives(raw)


QUESTIONS: tuple[Callable[[Raw], Answers], ...] = (
    set_access_on_part_of_a_mapping,
    set_access_over_a_run,
    map_part_of_a_handle,
    unmap_in_other_pieces,
    free_an_address_with_a_mapping,
    release_twice,
    copy_to_nothing,
    copy_without_access,
    copy_to_read_only,
    reserve_odd_sizes,
    close_on_exec,
    map_an_import_larger,
    import_something_else,
    store_of_a_kernel_into_read_only,
    store_of_a_kernel_into_nothing,
    unmap_beside_a_kernel,
    unmap_under_a_kernel,
    set_access_under_a_kernel,
)
_NOT_READY = 600


def _run_of(raw: Raw, count: int, *, reserved: int) -> int:
    """So many mappings of a granule side by side, without access, at the beginning of a range."""
    start = raw.reserve(reserved * raw.granule)
    for place in range(count):
        raw.map(start + place * raw.granule, raw.granule, raw.create(raw.granule))
    return start


def _copy_in(address: int) -> str:
    return _waited(ask("cuMemcpyHtoD", address, b"12345678", 8))


def _waited(answer: Answer) -> str:
    """A copy or a fill may come back before it is done."""
    after = ask("cuCtxSynchronize")
    return str(answer) if not after.code or after.code == answer.code else f"{answer}, then {after}"


def _touched(address: int, raw: Raw) -> Answers:
    return {
        "a copy out of it": _waited(ask("cuMemcpyDtoH", bytearray(8), address, 8)),
        "a copy into it": _copy_in(address),
        "a fill": _waited(ask("cuMemsetD8", address, 1, 8)),
    } | _lives(raw)


def _lives(raw: Raw) -> Answers:
    """Whether this process can still use the GPU."""
    made = ask("cuMemCreate", raw.granule, raw.property, 0)
    return {"the next create": str(made), "the next wait": str(ask("cuCtxSynchronize"))}


def _timed(function: str, *arguments: object) -> str:
    start = time.perf_counter()
    answer = ask(function, *arguments)
    return f"{answer} in {(time.perf_counter() - start) * 1e3:.2f} ms"


def _main(name: str, ordinal: int) -> None:
    question = next(question for question in QUESTIONS if question.__name__ == name)
    try:
        print(json.dumps(question(Raw(ordinal))), flush=True)
    except Skipped as reason:
        print(json.dumps({"skipped": str(reason)}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # nothing of a context that may be lost is taken down


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
