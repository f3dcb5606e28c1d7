"""The check that nothing consumed is used again, on a kernel's source."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass

import pytest
import tile_kernels

import rocmkern.tile.check
from rocmkern import TileError
from rocmkern import tile as T
from rocmkern.ops.places import kernel_modules
from rocmkern.tile.check import check_consumed


@dataclass(frozen=True)
class Config(T.Config):
    m: int = 4
    n: int = 8
    flag: bool = False


@T.device
def squash(t):
    return T.tanh(t)


@T.device
def squash_if(t, factor):
    if factor > 0.0:
        return T.tanh(t)
    return t


# Each of these uses something that is gone. The line at fault ends with a comment: variable, user, consumer.


@T.kernel
def straight(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    u = T.exp2(t)
    T.store_tile(x, (0,), 0, t, u)  # t store_tile exp2


@T.kernel
def twice_in_one_expression(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    t = t * t  # t * *


@T.kernel
def alias(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    u = t
    v = t * 2.0
    T.rowmax(v)
    T.rowmax(u)  # u rowmax *


@T.kernel
def in_a_branch(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    if factor > 0.0:
        T.absolute(t)
    T.rowsum(t)  # t rowsum absolute


@T.kernel
def in_both_branches(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    if factor > 0.0:
        u = T.absolute(t)
    else:
        u = t + 1.0
    u = u - factor
    u += t  # t + [absolute+]


@T.kernel
def same_condition(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    if factor > 0.0:
        T.tanh(t)
    if not factor <= 0.0:
        T.rowsum(t)  # t rowsum tanh


@T.kernel
def next_iteration(cfg, x: T.Tensor[2], factor: T.Float):
    bias = T.zeros(cfg, 4, 8)
    for _ in range(3):
        t = T.zeros(cfg, 4, 8) + bias  # bias + +
        T.rowmax(t)


@T.kernel
def next_iteration_after_continue(cfg, x: T.Tensor[2], factor: T.Float):
    bias = T.zeros(cfg, 4, 8)
    n = 0
    while n < 3:
        n = n + 1
        t = T.mask_where(T.zeros(cfg, 4, 8), bias)  # bias mask_where mask_where
        if n == 2:
            continue
        T.rowmax(t)


@T.kernel
def after_a_loop(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    for i in range(3):
        if i == 1:
            T.exp2(t)
            break
    T.rowmax(t)  # t rowmax exp2


@T.kernel
def by_a_device_function(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    u = squash(t)
    T.rowmax(u)
    T.rowmax(t)  # t rowmax tanh


@T.kernel
def by_one_way_through_a_device_function(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    u = squash_if(t, factor)
    T.rowmax(u)
    T.rowmax(t)  # t rowmax tanh


@T.kernel
def accumulator_of_the_softmax(cfg, x: T.Tensor[2], factor: T.Float):
    acc = T.zeros(cfg, 4, 8)
    m = T.full_rows(cfg, 4, 0.0)
    p, m, l, _new = T.softmax_step(T.zeros(cfg, 4, 8), 1.0, m, m, acc)
    T.rowmax(p)
    T.rowmax(acc + l)  # acc + softmax_step


@T.kernel
def scores_of_the_softmax(cfg, x: T.Tensor[2], factor: T.Float):
    s = T.zeros(cfg, 4, 8)
    m = T.full_rows(cfg, 4, 0.0)
    T.softmax_step(s, 1.0, m, m, T.zeros(cfg, 4, 8))
    T.rowmax(s)  # s rowmax softmax_step


@T.kernel
def stage_that_was_not_kept(cfg, x: T.Tensor[2], factor: T.Float):
    st = T.stage(cfg, x, 8, 8)
    T.fetch(st, 0)
    T.acquire(st)  # st acquire fetch


@T.kernel
def accumulator_of_a_product(cfg, x: T.Tensor[2], factor: T.Float):
    acc = T.zeros(cfg, 8, 8)
    st = T.acquire(T.fetch(T.stage(cfg, x, 8, 8), 0))
    out = T.dot_tn(st, st, acc)
    T.rowmax(out)
    T.rowmax(acc)  # acc rowmax dot_tn


@T.kernel
def tile_as_operand(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 8, 8)
    st = T.acquire(T.fetch(T.stage(cfg, x, 8, 8), 0))
    left = T.operand(t, st)
    T.rowmax(T.dot_nn(left, st))
    T.rowmax(T.dot_nn(left, st, t))  # t dot_nn operand


@T.kernel
def when_configured(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    if cfg.flag and cfg.m == 4:
        T.exp2(t)
    T.rowmax(t)  # t rowmax exp2


@T.kernel
def in_a_conditional_expression(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    u = T.exp2(t) if factor > 0.0 else T.zeros(cfg, 4, 8)
    T.rowmax(u)
    T.rowmax(t)  # t rowmax exp2


WRONG = [
    straight, twice_in_one_expression, alias, in_a_branch, in_both_branches, same_condition, next_iteration,
    next_iteration_after_continue, after_a_loop, by_a_device_function, by_one_way_through_a_device_function,
    accumulator_of_the_softmax, scores_of_the_softmax, stage_that_was_not_kept, accumulator_of_a_product,
    tile_as_operand, when_configured, in_a_conditional_expression,
]  # fmt: skip


@pytest.mark.parametrize("kernel", WRONG, ids=lambda k: k.__name__)
def test_a_second_use_is_found_and_named(kernel):
    lines, first = inspect.getsourcelines(kernel)
    (at,) = [i for i, line in enumerate(lines) if "  # " in line]
    variable, user, consumer = lines[at].split("  # ")[1].split()
    with pytest.raises(TileError) as error:
        check_consumed(kernel, Config(flag=True))
    message = str(error.value)
    assert message.startswith(
        f"kernel {kernel.__name__}, line {first + at} of {__file__}: {variable!r} was consumed by "
    )
    assert message.split("consumed by ")[1].split()[0] in consumer.strip("[]")
    assert f"cannot be used again by {user}" in message
    assert message.endswith("next iteration of the loop") == kernel.__name__.startswith("next_iteration")


@T.device
def uses_it_twice(t):
    u = T.exp2(t)
    return u + t


@T.kernel
def inside_a_device_function(cfg, x: T.Tensor[2], factor: T.Float):
    T.rowmax(uses_it_twice(T.zeros(cfg, 4, 8)))


def test_the_fault_may_lie_in_a_device_function():
    with pytest.raises(TileError, match=r"kernel inside_a_device_function, device function uses_it_twice, line \d+"):
        check_consumed(inside_a_device_function, Config())


@T.device
def makes_a_stage(cfg, x):
    st = T.acquire(T.fetch(T.stage(cfg, x, 8, 8), 0))
    T.finish(T.release(st))


@T.kernel
def stage_of_a_device_function(cfg, x: T.Tensor[2], factor: T.Float):
    makes_a_stage(cfg, x)


def test_a_stage_is_made_in_the_kernel():
    """A function that is compiled on its own would give out the shared memory of its caller once more."""
    with pytest.raises(TileError, match=r"device function makes_a_stage, line \d+ of .*: stage: made in a device func"):
        check_consumed(stage_of_a_device_function, Config())


# These are right, each in a way that a careless check would refuse.


@T.kernel
def made_again(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    t = T.exp2(t)
    for _ in range(3):
        t = t * 2.0
    while factor > 0.0:
        t = T.exp2(t)
        if T.block_id(cfg, 0) > 2:
            break
    T.rowmax(t)


@T.kernel
def exclusive_conditions(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    if factor > 1.0:
        T.exp2(t)
    elif factor > 0.0:
        T.tanh(t)
    else:
        T.rowmax(t)
    if factor <= 0.0:
        T.rowmax(t)


@T.kernel
def exclusive_conditions_that_only_the_author_knows(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    if factor > 5.0:
        T.exp2(t)
    if factor < 3.0:
        T.rowmax(t)


@T.kernel
def early_return(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    if factor > 0.0:
        T.exp2(t)
        return
    T.rowmax(t)


@T.kernel
def guarded_return(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    if factor > 0.0:
        T.exp2(t)
    if factor > 0.0:
        return
    T.rowmax(t)


@T.kernel
def once_in_a_loop(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    for i in range(3):
        if i == 0:
            T.rowmax(t)
            T.exp2(t)


@T.kernel
def used_first_then_consumed_in_the_last_iteration(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    for i in range(3):
        T.rowmax(t)
        if i == 2:
            T.exp2(t)


@T.kernel
def either_of_two_loops(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    for _ in range(T.block_id(cfg, 0), 1):
        T.exp2(t)
        break
    for _ in range(1, T.block_id(cfg, 0)):
        T.rowmax(t)


@T.kernel
def decided_by_the_configuration(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    if cfg.flag:
        T.exp2(t)
    if not cfg.flag or cfg.m > 100:
        T.rowmax(t)


@T.kernel
def rows_are_not_consumed(cfg, x: T.Tensor[2], factor: T.Float):
    r = T.full_rows(cfg, 4, 1.0)
    s = T.exp2(r) * r + r
    T.store_rows(x, (0, T.row_index(cfg, 4)), s * s, r > 0.0)


@T.kernel
def changed_condition(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    n = T.block_id(cfg, 0)
    if n == 0:
        T.exp2(t)
    n = n + T.block_id(cfg, 1) * 0 + 1
    if n == 0:
        T.rowmax(t)


@T.kernel
def either_value(cfg, x: T.Tensor[2], factor: T.Float):
    a = T.zeros(cfg, 4, 8)
    b = T.zeros(cfg, 4, 8)
    t = a if factor > 0.0 else b
    T.exp2(t)
    if factor > 0.0:
        T.rowmax(b)


@T.kernel
def swapped(cfg, x: T.Tensor[2], factor: T.Float):
    a = T.zeros(cfg, 4, 8)
    b = T.zeros(cfg, 4, 8)
    for _ in range(4):
        a, b = b, T.exp2(a)
    T.rowmax(a + b)


RIGHT = [
    made_again, exclusive_conditions, exclusive_conditions_that_only_the_author_knows, early_return, guarded_return,
    once_in_a_loop, used_first_then_consumed_in_the_last_iteration, either_of_two_loops, decided_by_the_configuration,
    rows_are_not_consumed, changed_condition, either_value, swapped,
]  # fmt: skip


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("kernel", RIGHT, ids=lambda k: k.__name__)
def test_what_is_right_is_not_refused(kernel, flag):
    check_consumed(kernel, Config(flag=flag))


def kernels_of(module):
    return [f for f in vars(module).values() if inspect.isfunction(f) and hasattr(f, "parameters")]


MODULES = [importlib.import_module(name) for name in kernel_modules()]


@pytest.mark.parametrize("module", [*MODULES, tile_kernels], ids=lambda m: m.__name__.rpartition(".")[2])
def test_no_kernel_of_the_library_is_refused_or_skipped(module, monkeypatch):
    finished = []
    walk = rocmkern.tile.check._Walker.call
    monkeypatch.setattr(rocmkern.tile.check._Walker, "call", lambda *args: (walk(*args), finished.append(args[1]))[0])
    for kernel in kernels_of(module):
        flags = [f for f, v in vars(module.Config()).items() if isinstance(v, bool)]
        for values in [dict.fromkeys(flags, False), dict.fromkeys(flags, True)]:
            check_consumed(kernel, module.Config(**values))
        assert kernel in finished


def test_a_kernel_without_source_is_not_checked():
    space = {"T": T}
    exec("def k(cfg, x: T.Tensor[2]):\n    t = T.zeros(cfg, 4, 8)\n    T.exp2(t)\n    T.rowmax(t)\n", space)
    check_consumed(T.kernel(space["k"]), Config())


def test_the_table_of_what_is_consumed_agrees_with_the_documentation():
    for name, operation in T.OPERATIONS.items():
        documented = "consume" in operation.meaning.__doc__.replace("Does not consume", "")
        assert documented == bool(operation.consumes), name
        assert set(operation.consumes) <= set(operation.signature.parameters)


@T.kernel
def wrong_arguments(cfg, x: T.Tensor[2], factor: T.Float):
    t = T.zeros(cfg, 4, 8)
    T.exp2(t)
    T.rowmax(t, t, t)


def test_what_does_not_fit_an_operation_is_left_to_the_compiler():
    check_consumed(wrong_arguments, Config())
