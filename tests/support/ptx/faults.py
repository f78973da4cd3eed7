"""Errors of a kernel on a device, and instructions that the interpreter does not support."""

from __future__ import annotations


class Fault(Exception):
    """A kernel did what it must not."""


class UnknownInstruction(Fault):
    """An instruction, or a form of one, that is not implemented."""


class OutOfBounds(Fault):
    """An access that is not inside one buffer."""


class Misaligned(Fault):
    """An address that is no multiple of what is accessed."""


class Uninitialised(Fault):
    """A register or shared memory is read where nothing was written."""


class Race(Fault):
    """Two threads of a block access the same shared memory, one of them writes, and no barrier is between."""


class Divergence(Fault):
    """Threads that should meet at a barrier, or in a warp, do not."""


class Trap(Fault):
    """The kernel stopped itself."""
