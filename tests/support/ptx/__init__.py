"""An interpreter of PTX: the kernels as nvcc compiled them, run without a GPU.

    parse      text into kernels: parameters, registers, variables, instructions
    decode     an instruction into steps of the core; those that are not an operation of each lane for itself
               are in moves, choices, warps and program
    program    a kernel decoded, and where its registers lie
    launch     what is checked before a launch, and what went wrong in it
    runtime    what the host code of csrc/cuda calls, in place of CUDA's: a launch comes here

and in C++, compiled when it is first asked for (`core.py`):

    core/integers, floats, conversions   what each opcode makes of numbers, 32 lanes at a time
    core/machine, warps                  threads, registers, branches, barriers; what a warp does together
    core/memory, accesses                buffers with bounds; shared memory, who wrote it and who read it

It is strict: whatever it does not know raises, and so does what a device would not forgive (`faults`).
"""
