"""Loops over arrays: those of the compiled module, and those that Numba compiles at their first call."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from iet.native import load

_F = TypeVar("_F", bound=Callable[..., Any])

LOOPS = dict[str, Callable[..., Any]]()
"""Name in the compiled module -> the function beside which `loop` stands."""


def loop(function: _F) -> _F:
    """Take the loop of the compiled module that is named as a private one, `_x_loop`; else `njit` that.

    Of `x_njit`, which loops of Numba's call, too, it is taken by another name: `_x = loop(x_njit)`.

    Nothing has to be compiled then. The function says what both do, to the bit, and serves where there is no
    compiled module. What it is given must have the types it names: the other one takes float32 and float64
    scores alone. Neither checks an index.
    """
    name = function.__name__.removeprefix("_").removesuffix("_loop").removesuffix("_njit")
    LOOPS[name] = inspect.unwrap(function)
    native = getattr(getattr(load.cpu, "loops", None), name, None)
    return njit(function) if native is None else cast(_F, native)


def njit(function: _F) -> _F:
    """Compile a private loop, with all that it calls, on its first call: see `iet.native.jit`.

    Numba is imported then, which takes as long as an audit of some pages: one that needs none of its loops
    does without.
    """
    if isinstance(function, _Later):
        return function
    _later.append(_Later(function))
    return cast(_F, _later[-1])


class _Later:
    """A loop that nobody has called yet."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._compiled = function, None

    def __call__(self, *given: Any) -> Any:
        return self.compiled()(*given)

    def compiled(self) -> Any:
        """Return what Numba makes of it, which stands in its place in the module from now on."""
        if self._compiled is None:
            function, names = self._function, self._function.__globals__
            for name in function.__code__.co_names:  # Numba compiles calls of what it has compiled alone
                if isinstance(names.get(name), _Later):
                    names[name] = names[name].compiled()
            self._compiled = _jit().njit(function)
            if names.get(function.__name__) is self:
                names[function.__name__] = self._compiled
        return self._compiled


_later = list[_Later]()
_before_numba: list[Callable[[Any], object]] = []


def look_up() -> None:
    """Find out where each loop is kept that was not called yet, as the first call does; compile none."""
    for each in _later:
        each.compiled()


def _jit() -> Any:
    jit = importlib.import_module("iet.native.jit")
    while _before_numba:
        _before_numba.pop()(jit)
    return jit


@contextlib.contextmanager
def compiling(tell: Callable[[], object]) -> Iterator[None]:
    """Do what `iet.native.jit.without_blas` and `compiling` do, without Numba while no loop needs it."""
    with contextlib.ExitStack() as stack:

        def begin(jit: Any) -> None:
            jit.without_blas()
            stack.enter_context(jit.compiling(tell))

        _before_numba.append(begin)
        if "numba" in sys.modules:
            _jit()
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                _before_numba.remove(begin)
