"""What the kernels do to single numbers: bfloat16, which numba lacks, and an exponential that makes vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

FAST = {"reassoc", "contract", "nsz", "arcp"}
"""Sums may be taken in any order; a value that is not a number stays one, for the check of the logits."""

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUNDING = np.float32(12582912.0)  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_ROUNDING_BITS = np.int32(0x4B400000)
_LEAST = np.float32(-87.0)
_MOST = np.float32(88.0)


def widen(value: Any) -> Any:
    """Return a float32 of an element: itself, or of the bits of a bfloat16. For kernels alone."""
    raise NotImplementedError


def narrow(value: Any, like: Any) -> Any:
    """Return a float32 as an element of an array's kind: itself, or the bits of a bfloat16, rounded to even."""
    raise NotImplementedError


@overload(widen, strict=False)
def _widen(value: Any) -> Callable[[Any], Any]:
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@overload(narrow, strict=False)
def _narrow(value: Any, like: Any) -> Callable[[Any, Any], Any]:  # noqa: ARG001 - numba matches by name
    if like.dtype == types.uint16:
        return lambda value, like: _rounded(value)  # noqa: ARG005
    return lambda value, like: value  # noqa: ARG005


@njit
def _rounded(value: Any) -> Any:
    bits = np.float32(value).view(np.uint32)
    if value != value:
        return np.uint16(0x7FC0)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@njit(fastmath={"contract"})
def exponential(value: Any) -> Any:
    """Return e to a float32, within 2 units in the last place; the argument is taken between -87 and 88.

    Source: Cephes, expf: the power of two apart, the rest by a polynomial of degree 5.
    """
    clamped = min(max(value, _LEAST), _MOST) if value == value else value
    shifted = clamped * _LOG2_E + _ROUNDING
    power = shifted - _ROUNDING
    rest = clamped - power * _LN2_HIGH - power * _LN2_LOW
    series = np.float32(1.9875691500e-4)
    series = series * rest + np.float32(1.3981999507e-3)
    series = series * rest + np.float32(8.3334519073e-3)
    series = series * rest + np.float32(4.1665795894e-2)
    series = series * rest + np.float32(1.6666665459e-1)
    series = series * rest + np.float32(5.0000001201e-1)
    series = series * rest * rest + rest + np.float32(1.0)
    exponent = np.int32(np.float32(shifted).view(np.int32) - _ROUNDING_BITS)
    return series * np.int32((exponent + np.int32(127)) << np.int32(23)).view(np.float32)
