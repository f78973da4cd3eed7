"""An interpreter of PTX in NumPy: the kernels as nvcc compiled them, run without a GPU.

    parse      text into kernels: parameters, registers, variables, instructions
    decode     an instruction into a function of a machine and its active threads; the operations are in
               integers, floats, conversions, moves and warps
    machine    threads, registers, branches, barriers
    memory     global buffers with bounds; shared memory with what was written and who read it
    launch     a grid, a block's threads and many blocks at a time
    runtime    what the host code of csrc/cuda calls, in place of CUDA's: a launch comes here

It is strict: whatever it does not know raises, and so does what a device would not forgive (`faults`).
"""
