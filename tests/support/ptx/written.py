"""Kernels written by hand, for tests of the interpreter itself."""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np

from tests.support.ptx.launch import launch, programs
from tests.support.ptx.memory import GlobalMemory
from tests.support.ptx.program import Program

KERNEL = """
.version 8.0
.target sm_90
.address_size 64
{module}
.visible .entry kernel(
    .param .u64 kernel_param_0,
    .param .u64 kernel_param_1
)
.maxntid 1024, 1, 1
{{
    .reg .pred %p<9>;
    .reg .b16 %h<9>;
    .reg .b32 %r<9>;
    .reg .f32 %f<9>;
    .reg .b64 %d<9>;
    .reg .f64 %e<9>;
    .reg .b64 %in, %out, %at;
    .reg .b32 %t;
    {declared}
    ld.param.u64 %in, [kernel_param_0];
    ld.param.u64 %out, [kernel_param_1];
    cvta.to.global.u64 %in, %in;
    mov.u32 %t, %tid.x;
    {body}
    ret;
}}
"""


@functools.cache
def program(body: str, declared: str = "", module: str = "") -> Program:
    (compiled,) = programs(KERNEL.format(body=body, declared=declared, module=module)).values()
    return compiled


def run(
    body: str,
    threads: int = 1,
    inputs: Any = (0,),
    outputs: Any = None,
    declared: str = "",
    module: str = "",
    blocks: int = 1,
    **options: Any,
) -> Any:
    """Run a kernel whose threads know %in, %out and %t, and return `outputs`."""
    memory = GlobalMemory()
    read = np.array(inputs)
    written = np.zeros(threads * blocks, np.uint32) if outputs is None else outputs
    parameters = struct.pack("<QQ", memory.add_array(read, "in"), memory.add_array(written, "out"))
    launch(program(body, declared, module), memory, parameters, (blocks, 1, 1), (threads, 1, 1), **options)
    return written
