"""A team of threads that runs one kernel together: torch's own OpenMP threads, with barriers of Baton's own.

torch's threads are asked because they turn in wait for their next work for milliseconds: threads beside them would have
to share their cores. A thread that waits at a barrier yields its core at each turn, so that a team goes on, slower,
where it has more threads than there are free cores.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from baton.engine.runners.torch.ops.cpu.numba_kernels.compiling import kernel

Team = tuple[int, int, int, int]
"""How many threads are asked for, and the addresses of OpenMP's functions in `_FUNCTIONS`; these may be 0 for one."""
ALONE: Team = (1, 0, 0, 0)
MEMBER_ALONE = (0, 1, 0)
"""Of a team of one: its index, the team's size, and the address of the arrivals at barriers, which are counted on."""
_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
_INT32, _INT64, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


@cache
def team_of(num_threads: int) -> Team:
    """Return a team of so many threads of torch's; of one where torch's OpenMP cannot be asked."""
    if num_threads == 1:
        return ALONE
    try:
        library = ctypes.CDLL(torch._C.__file__)
        fork, index, size = (ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS)
    except (OSError, AttributeError):  # torch without OpenMP, or with one that has no such entry
        return ALONE
    return num_threads, fork, index, size


@kernel
def share(count: Any, unit: Any, member: Any) -> Any:
    """Return which of `count` things are those of a team's member, [first, end): multiples of `unit`, and the rest."""
    index, size, _ = member
    num_units = -(-count // unit)
    return index * num_units // size * unit, min((index + 1) * num_units // size * unit, count)


@kernel
def wait_for_all(member: Any) -> None:
    """Return when all members of a team have come here."""
    _, size, arrivals = member
    if size > 1:
        awaited = (_count(arrivals, 1) // size + 1) * size
        while _count(arrivals, 0) < awaited:
            _yield_core()


@intrinsic
def _count(_context: Any, arrivals: Any, more: Any) -> Any:
    """Add to the number at an address; return what it was."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        counter = builder.inttoptr(arguments[0], _INT64.as_pointer())
        return builder.atomic_rmw("add", counter, arguments[1], "seq_cst")

    return types.int64(arrivals, more), generate


@intrinsic
def _yield_core(_context: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(_INT32, []), "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def run_by_team(typing_context: Any, team: Any, part: Any, work: Any) -> Any:
    """Have a kernel `part(member, *work)` run by each member of a team, and wait until all have ended.

    `work`: any tuple; all members get the same arrays.
    """
    called = part.get_call_type(typing_context, (types.UniTuple(types.int64, 3), *work.types), {})

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        compiled = part.dispatcher.get_compile_result(called)
        context.add_linking_libs((compiled.library,))
        num_threads, fork, *_ = cgutils.unpack_tuple(builder, arguments[0])
        arrivals = cgutils.alloca_once_value(builder, _INT64(0))
        values = [arguments[0], builder.ptrtoint(arrivals, _INT64), arguments[2]]
        packed = cgutils.alloca_once_value(builder, cgutils.pack_struct(builder, values))
        entry = _entry(context, builder.module, compiled.fndesc, called, packed.type)
        work = cgutils.unpack_tuple(builder, arguments[2], len(called.args) - 1)
        with builder.if_else(builder.icmp_signed("==", num_threads, _INT64(1))) as (is_alone, has_others):
            with is_alone:
                member = context.make_tuple(builder, called.args[0], [_INT64(number) for number in MEMBER_ALONE])
                context.call_internal(builder, compiled.fndesc, called, [member, *work])
            with has_others:
                kind = ir.FunctionType(ir.VoidType(), [entry.type, _POINTER, _INT32, _INT32]).as_pointer()
                passed = [entry, builder.bitcast(packed, _POINTER), builder.trunc(num_threads, _INT32), _INT32(0)]
                builder.call(builder.inttoptr(fork, kind), passed)
        return context.get_dummy_value()

    return types.void(team, part, work), generate


def _entry(context: Any, module: Any, description: Any, called: Any, packed: Any) -> Any:
    """Generate the function that each thread is given: it takes the packed work and calls the kernel as a member."""
    kind = ir.FunctionType(ir.VoidType(), [_POINTER])
    function = ir.Function(module, kind, module.get_unique_name("member_of_team"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    team, arrivals, work = cgutils.unpack_tuple(builder, builder.load(builder.bitcast(function.args[0], packed)), 3)
    asked = ir.FunctionType(_INT32, []).as_pointer()
    index, size = (
        builder.sext(builder.call(builder.inttoptr(builder.extract_value(team, place), asked), []), _INT64)
        for place in (2, 3)
    )
    member = context.make_tuple(builder, called.args[0], [index, size, arrivals])
    status, _ = context.call_internal_no_propagate(
        builder, description, called, [member, *cgutils.unpack_tuple(builder, work, len(called.args) - 1)]
    )
    with builder.if_then(status.is_error):  # no memory: the others would wait for this one for ever
        builder.call(cgutils.get_or_insert_function(module, ir.FunctionType(ir.VoidType(), []), "abort"), [])
    builder.ret_void()
    return function
