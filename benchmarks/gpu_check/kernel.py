"""A kernel of our own: one thread that counts into memory until its time is over. A span of 0 is one store.

It is PTX, which the driver compiles for whatever GPU there is, so that no compiler and no torch is needed. Its clock
is the GPU's own, in nanoseconds, which some GPUs advance once a microsecond only.
"""

from __future__ import annotations

import ctypes
from typing import Any

from benchmarks.gpu_check.raw import Answer, ask, must
from benchmarks.gpu_check.setting import Skipped

NOT_FOUND = 500
_PTX = b"""
.version 6.4
.target sm_70
.address_size 64

.visible .entry count_until(.param .u64 where, .param .u64 span_ns)
{
    .reg .pred  %again;
    .reg .u64   %at, %span, %start, %now, %count;

    ld.param.u64        %at, [where];
    ld.param.u64        %span, [span_ns];
    cvta.to.global.u64  %at, %at;
    mov.u64             %start, %globaltimer;
    mov.u64             %count, 0;
more:
    add.u64             %count, %count, 1;
    st.volatile.global.u64 [%at], %count;
    mov.u64             %now, %globaltimer;
    sub.u64             %now, %now, %start;
    setp.lt.u64         %again, %now, %span;
    @%again bra         more;
    ret;
}
\0"""


class Counting:
    """The kernel, loaded into the current context.

    Raises:
        Skipped: the library runs no kernels.
    """

    def __init__(self) -> None:
        loaded = ask("cuModuleLoadData", _PTX)
        if loaded.code == NOT_FOUND:
            raise Skipped("the stand-in runs no kernels")
        module = loaded.value if not loaded.code else must("cuModuleLoadData", _PTX)
        self._function: Any = must("cuModuleGetFunction", module, b"count_until")

    def launch(self, address: int, span_s: float) -> Answer:
        """Start it in the default stream, and see to it that it is on its way."""
        values = (address, int(span_s * 1e9)), (ctypes.c_uint64, ctypes.c_uint64)
        launched = ask("cuLaunchKernel", self._function, 1, 1, 1, 1, 1, 1, 0, 0, values, 0)
        ask("cuStreamQuery", 0)  # some drivers hold launches back until they are asked for something
        return launched
