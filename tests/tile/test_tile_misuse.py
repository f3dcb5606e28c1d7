"""A misuse of the tile language is a `TileError` that names the operation and what was given, on every target."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from tile_kernels import Config

from rocmkern import TileError
from rocmkern import tile as T


@T.kernel
def tiles_of_two_shapes(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """add|[+]: a tile [4, 8] and a tile [4, 16] do not match"""
    T.rowmax(T.zeros(cfg, 4, 8) + T.zeros(cfg, 4, 16))


@T.kernel
def tile_and_other_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """mul|[*]: a tile [4, 8] and 8 rows of f32 do not match"""
    T.rowmax(T.zeros(cfg, 4, 8) * T.full_rows(cfg, 8, 1.0))


@T.kernel
def scalar_on_the_left(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """write the tile on the left"""
    T.rowmax(2.0 * T.zeros(cfg, 4, 8))


@T.kernel
def rows_on_the_left(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """write the tile on the left"""
    T.rowmax(T.full_rows(cfg, 4, 1.0) - T.zeros(cfg, 4, 8))


@T.kernel
def multiplied_by_other_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """multiply_rows: (a tile|float32) .* do not match"""
    T.rowmax(T.multiply_rows(T.zeros(cfg, 4, 8), T.full_rows(cfg, 4, 1.0), T.full_rows(cfg, 8, 1.0)))


@T.kernel
def summand_of_another_shape(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """multiply_add: a tile [4, 8] and a tile [4, 16] do not match"""
    T.rowmax(T.multiply_add(T.zeros(cfg, 4, 8), T.zeros(cfg, 4, 8), T.zeros(cfg, 4, 16)))


@T.kernel
def mask_of_another_shape(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """mask_where: a tile [4, 8] and a tile [4, 16] do not match"""
    T.rowmax(T.mask_where(T.zeros(cfg, 4, 8), T.zeros(cfg, 4, 16)))


@T.kernel
def softmax_of_other_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """softmax_step: a tile [4, 8] and 8 rows of f32 do not match"""
    m = T.full_rows(cfg, 8, 0.0)
    T.softmax_step(T.zeros(cfg, 4, 8), 1.0, m, m, T.zeros(cfg, 4, 8))


@T.kernel
def softmax_into_another_accumulator(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """softmax_step: a tile [4, 8] and a tile [16, 8] do not match"""
    m = T.full_rows(cfg, 4, 0.0)
    T.softmax_step(T.zeros(cfg, 4, 8), 1.0, m, m, T.zeros(cfg, 16, 8))


@T.kernel
def end_of_another_softmax(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """softmax_end: a tile [4, 8] and 8 rows of f32 do not match"""
    m = T.full_rows(cfg, 8, 0.0)
    T.softmax_end(1.0, m, m, T.zeros(cfg, 4, 8))


@T.kernel
def inner_dimensions(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """dot_nt: the inner dimensions 8 and 16 do not match"""
    row = T.row_index(cfg, 4)
    st = T.acquire(T.fetch(T.stage(cfg, x, 8, 16), 0))
    T.rowmax(T.dot_nt(T.load_operand(cfg, x, (row,), 0, 8, row < 4), st))
    T.release(st)


@T.kernel
def accumulator_of_another_shape(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """dot_nn: a tile [4, 8] cannot take a product of shape [4, 16]"""
    row = T.row_index(cfg, 4)
    st = T.acquire(T.fetch(T.stage(cfg, x, 8, 16), 0))
    T.rowmax(T.dot_nn(T.load_operand(cfg, x, (row,), 0, 8, row < 4), st, T.zeros(cfg, 4, 8)))
    T.release(st)


@T.kernel
def tile_in_place_of_an_operand(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """dot_nt: the left side must be .*left operand of a product.*, got a tile [4, 16]"""
    st = T.acquire(T.fetch(T.stage(cfg, x, 8, 16), 0))
    T.rowmax(T.dot_nt(T.zeros(cfg, 4, 16), st))
    T.release(st)


@T.kernel
def tensor_in_place_of_a_vector(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """matvec: .*vector.*2 axes"""
    row = T.row_index(cfg, 4)
    T.matvec(cfg, x, (row,), 0, 8, x, row < 4)


@T.kernel
def tile_in_place_of_a_vector(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """matvec: vector.* must be .*tensor|matvec: .*vector must be"""
    row = T.row_index(cfg, 4)
    T.matvec(cfg, x, (row,), 0, 8, T.zeros(cfg, 4, 8), row < 4)


@T.kernel
def too_few_index_entries(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """load_tile: .*2 axes needs 1 index entries, got 2"""
    row = T.row_index(cfg, 4)
    T.rowmax(T.load_tile(cfg, x, (row, 0), 0, 8, row < 4))


@T.kernel
def index_of_other_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """load_tile: .*8 rows of i32"""
    row = T.row_index(cfg, 4)
    T.rowmax(T.load_tile(cfg, x, (T.row_index(cfg, 8),), 0, 8, row < 4))


@T.kernel
def storing_other_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """store_tile: a tile [8, 8] and 4 rows of i1 do not match"""
    row = T.row_index(cfg, 4)
    T.store_tile(x, (row,), 0, T.zeros(cfg, 8, 8), row < 4)


@T.kernel
def storing_integers(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """store_tile: a tile can be stored as floats or int8, not as int32"""
    row = T.row_index(cfg, 4)
    T.store_tile(i, (row,), 0, T.zeros(cfg, 4, 8), row < 4)


@T.kernel
def storing_rows_of_another_length(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """store_rows: (8 rows of f32 and 4 rows of i1|4 rows of i1 and 8 rows of f32) do not match"""
    row = T.row_index(cfg, 4)
    T.store_rows(x, (row, 0), T.full_rows(cfg, 8, 1.0), row < 4)


@T.kernel
def maximum_of_two_lengths(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """maximum: 4 rows of f32 and 8 rows of f32 do not match"""
    T.maximum(T.full_rows(cfg, 4, 1.0), T.full_rows(cfg, 8, 1.0))


@T.kernel
def stage_of_a_vector(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """stage: the source must have 2 axes, got"""
    T.stage(cfg, x[0], 8, 8)


@T.kernel
def stage_larger_than_shared_memory(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """stage: a stage [1024, 512] of float32 takes 2097152 bytes; .* has 1048576 bytes of shared memory; use"""
    T.stage(cfg, x, 1024, 512)


@T.kernel
def rowmax_of_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """rowmax: the argument must be .*, got 4 rows of f32"""
    T.rowmax(T.full_rows(cfg, 4, 1.0))


@T.kernel
def stage_without_acquire(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """this stage is not acquired"""
    row = T.row_index(cfg, 4)
    st = T.fetch(T.stage(cfg, x, 8, 16), 0)
    T.rowmax(T.dot_nt(T.load_operand(cfg, x, (row,), 0, 16, row < 4), st))


@T.kernel
def stage_after_release(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """this stage is not acquired"""
    row = T.row_index(cfg, 4)
    st = T.release(T.acquire(T.fetch(T.stage(cfg, x, 8, 16), 0)))
    T.rowmax(T.dot_nt(T.load_operand(cfg, x, (row,), 0, 16, row < 4), st))


@T.kernel
def acquire_without_fetch(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """acquire: nothing was fetched"""
    T.acquire(T.stage(cfg, x, 8, 16))


@T.kernel
def two_fetches(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """fetch: a window is already on its way; acquire it first"""
    T.fetch(T.fetch(T.stage(cfg, x, 8, 16), 0), 8)


@T.kernel
def finish_of_a_window_in_use(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """finish: the window in use must be released first"""
    T.finish(T.acquire(T.fetch(T.stage(cfg, x, 8, 16), 0)))


@T.kernel
def transposition_of_one_axis(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """transposed: the tensor must have 2 axes, got"""
    T.stage(cfg, T.transposed(x[0], True), 8, 16)


@T.kernel
def acquire_over_a_window_in_use(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """acquire: the window in use must be released"""
    T.acquire(T.fetch(T.acquire(T.fetch(T.stage(cfg, x, 8, 16), 0)), 8))


@T.kernel
def release_of_nothing(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """release: the stage is not acquired"""
    T.release(T.stage(cfg, x, 8, 16))


@T.kernel
def stages_larger_than_shared_memory_together(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """stage: with a stage [512, 300] of float32 the kernel's stages take 1228800 bytes; .* has 1048576 bytes"""
    a = T.fetch(T.stage(cfg, x, 512, 300), 0)
    b = T.fetch(T.stage(cfg, x, 512, 300), 0)
    T.rowmax(T.dot_tn(T.acquire(a), T.acquire(b)))


@T.kernel
def shape_known_at_run_time_only(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """zeros: n must be known when the kernel is compiled .*, got int64"""
    T.rowmax(T.zeros(cfg, 4, x.shape[1]))


@T.kernel
def configuration_without_the_attribute(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """cfg has no attribute 'block'; it has: arch, waves, threads_per_row, vector_width, .*, num_stages, overlaps, m"""
    T.rowmax(T.zeros(cfg, cfg.block, 8))


@T.kernel
def operators_that_tiles_lack(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """mod: tiles have [+] - [*] only"""
    T.rowmax(T.zeros(cfg, 4, 8) % 2)


@T.kernel
def keyword_arguments(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """zeros: tile operations take positional arguments only"""
    T.rowmax(T.zeros(cfg, m=4, n=8))


@T.kernel
def float_index(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """load_tile: an index must be 4 rows of i32 or an integer, got 4 rows of f32"""
    row = T.row_index(cfg, 4)
    T.rowmax(T.load_tile(cfg, x, (T.full_rows(cfg, 4, 0.0),), 0, 8, row < 4))


@T.kernel
def tile_in_place_of_a_tensor(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """load_tile: the tensor must be .*, got a tile [4, 8]"""
    row = T.row_index(cfg, 4)
    T.rowmax(T.load_tile(cfg, T.zeros(cfg, 4, 8), (row,), 0, 8, row < 4))


@T.kernel
def pages_that_were_not_given(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """fetch: a stage made with paged=True needs `paged` first"""
    T.fetch(T.stage(cfg, x, 8, 16, x, True), 0)


@T.kernel
def stage_of_another_dtype(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """stage: a tensor .*with 2 axes.* cannot be held as int32"""
    T.stage(cfg, x, 8, 16, i)


@T.kernel
def rotation_of_two_shapes(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """rotate: a tile [4, 8] and a tile [4, 16] do not match"""
    T.rotate(T.zeros(cfg, 4, 8), T.zeros(cfg, 4, 8), T.zeros(cfg, 4, 8), T.zeros(cfg, 4, 16))


@T.kernel
def frequencies_that_are_floats(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """rotations: frequencies must be a tensor of int64 with 1 axis, got a tensor"""
    T.rotations(cfg, T.row_index(cfg, 4), x, 0, 8)


@T.kernel
def integers_from_floats(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """load_integers: needs a tensor of int32 or int64, got"""
    row = T.row_index(cfg, 4)
    T.load_integers(x[0], (row,), row < 4)


@T.kernel
def counters_that_are_floats(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """last_to_arrive: counters must be int32 with 1 axis, got .* of float32"""
    T.last_to_arrive(cfg, x[0], 0, 1)


@T.kernel
def counters_with_two_axes(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """last_to_arrive: counters must be int32 with 1 axis, got .*2.* of int32"""
    T.last_to_arrive(cfg, i, 0, 1)


@T.kernel
def tile_of_counters(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """last_to_arrive: the tensor must be .*, got a tile [4, 8]"""
    T.last_to_arrive(cfg, T.zeros(cfg, 4, 8), 0, 1)


@T.kernel
def tile_that_is_repeated(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """repeat_rows: (needs rows|the argument must be .* per tile row), got a tile [4, 8]"""
    T.repeat_rows(T.zeros(cfg, 4, 8), 2)


@T.kernel
def rows_folded_into_no_part(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """fold_sum: 16 rows are no multiple of 3"""
    T.fold_sum(T.full_rows(cfg, 16, 1.0), 3)


@T.kernel
def tile_folded_into_no_part(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """fold_sum: 16 rows are no multiple of 32"""
    T.fold_sum(T.zeros(cfg, 16, 8), 32)


@T.kernel
def largest_of_no_part(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """fold_max: 16 rows are no multiple of 0"""
    T.fold_max(T.full_rows(cfg, 16, 1.0), 0)


@T.kernel
def largest_of_a_folded_tile(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """fold_max: needs rows of f32, got a tile [16, 8]"""
    T.fold_max(T.zeros(cfg, 16, 8), 4)


@T.kernel
def integers_that_are_folded(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """fold_sum: needs rows of f32, got 16 rows of i32"""
    T.fold_sum(T.row_index(cfg, 16), 4)


@T.kernel
def count_known_at_run_time_only(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """repeat_rows: count must be known when the kernel is compiled .*, got int64"""
    T.repeat_rows(T.row_index(cfg, 4), x.shape[1])


@T.kernel
def part_known_at_run_time_only(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """fold_sum: m must be known when the kernel is compiled .*, got int64"""
    T.fold_sum(T.full_rows(cfg, 16, 1.0), x.shape[1])


@T.kernel
def counter_at_a_float(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """last_to_arrive: index must be an integer, got float64"""
    T.last_to_arrive(cfg, i[0], 0.0, 1)


@T.kernel
def arrivals_that_are_no_number(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """last_to_arrive: count must be an integer, got 4 rows of i32"""
    T.last_to_arrive(cfg, i[0], 0, T.row_index(cfg, 4))


@T.kernel
def rows_read_again(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """reread: the tensor must be a tensor, got 4 rows of i32"""
    T.reread(T.row_index(cfg, 4))


@T.kernel
def scratch_rows_of_two_axes(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """scratch_rows: needs a contiguous tensor with 1 axis, .* rows of whole 16 bytes, got .* 2 axes and n=4"""
    T.scratch_rows(x, 4)


@T.kernel
def scratch_rows_of_half_a_piece(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """scratch_rows: needs a contiguous tensor with 1 axis, .* rows of whole 16 bytes, got .* and n=6"""
    T.scratch_rows(x[0], 6)


@T.kernel
def tile_divided(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """truediv: tiles have [+] - [*] only: multiply by a reciprocal"""
    T.rowmax(T.zeros(cfg, 4, 8) / 2.0)


@T.kernel
def tile_divided_by_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """truediv: tiles have [+] - [*] only: multiply by a reciprocal"""
    T.rowmax(T.zeros(cfg, 4, 8) / T.full_rows(cfg, 4, 2.0))


@T.kernel
def number_divided_by_a_tile(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """truediv: tiles have [+] - [*] only: multiply by a reciprocal"""
    T.rowmax(1.0 / T.zeros(cfg, 4, 8))


@T.kernel
def tile_compared_with_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """lt: tiles are not compared: compare rows"""
    T.where(T.zeros(cfg, 4, 8) < T.full_rows(cfg, 4, 1.0), 1.0, 0.0)


@T.kernel
def tile_compared_with_a_number(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """eq: tiles are not compared: compare rows"""
    T.where(T.zeros(cfg, 4, 8) == 1.0, 1.0, 0.0)


@T.kernel
def index_that_is_a_float(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """load_tile: an index must be rows of i32 or an integer, got float64"""
    T.rowmax(T.load_tile(cfg, x, (1.5,), 0, 8, T.row_index(cfg, 4) < 4))


@T.kernel
def rows_of_numbers_for_valid(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """load_tile: valid must be rows of i1 .a comparison., got 4 rows of i32"""
    row = T.row_index(cfg, 4)
    T.rowmax(T.load_tile(cfg, x, (row,), 0, 8, row))


@T.kernel
def distance_of_floats(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """distance: position must be rows of i32, got 4 rows of f32"""
    T.rowmax(T.distance(cfg, T.full_rows(cfg, 4, 1.0), 0, 8))


@T.kernel
def bounds_of_other_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """mask_outside: bounds of a tile [4, 8] must be 4 rows of i32, got 4 rows of f32"""
    T.rowmax(T.mask_outside(T.zeros(cfg, 4, 8), 0, T.row_index(cfg, 4), T.full_rows(cfg, 4, 1.0)))


@T.kernel
def compared_with_other_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """at_least: a tile [4, 8] and 8 rows of f32 do not match"""
    T.rowmax(T.at_least(T.zeros(cfg, 4, 8), T.full_rows(cfg, 8, 1.0)))


@T.kernel
def compared_with_a_tensor(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """at_least: the bound must be rows or a number, got"""
    T.rowmax(T.at_least(T.zeros(cfg, 4, 8), x))


@T.kernel
def padded_with_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """pad_columns: value must be a number, got 4 rows of f32"""
    T.rowmax(T.pad_columns(T.zeros(cfg, 4, 8), 0, 4, T.full_rows(cfg, 4, 1.0)))


@T.kernel
def padded_from_a_float_on(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """pad_columns: stop must be a number, got float64"""
    T.rowmax(T.pad_columns(T.zeros(cfg, 4, 8), 0, 4.5, 1.0))


@T.kernel
def window_from_a_float_on(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """fetch: a window starts at an integer, got float64"""
    T.release(T.acquire(T.fetch(T.stage(cfg, x, 8, 16), 1.5)))


@T.kernel
def stage_that_may_be_of_pages(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """stage: paged must be known when the kernel is compiled"""
    T.release(T.acquire(T.fetch(T.stage(cfg, x, 8, 16, x, x.shape[0] > 3), 0)))


@T.kernel
def squares_of_other_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """square_step: a tile [4, 8] and 8 rows of f32 do not match"""
    T.square_step(T.zeros(cfg, 4, 8), T.full_rows(cfg, 4, 1.0), T.full_rows(cfg, 8, 1.0))


@T.kernel
def place_of_a_float(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """ordered_float: needs an integer, got float64"""
    T.full_rows(cfg, 4, T.ordered_float(1.5))


@T.kernel
def more_indices_than_axes(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """a tensor of float32 with 2 axes takes up to 2 integer indices, got"""
    T.full_rows(cfg, 4, x[0, 1, 2])


@T.kernel
def rows_of_integers_and_a_float(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """add: rows of i32 take integers only, got float64"""
    T.store_rows(i[0], (0,), T.row_index(cfg, 4) + 1.5, T.row_index(cfg, 4) < 4)


@T.kernel
def rows_and_a_tensor(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """add: cannot combine 4 rows of f32 with"""
    T.rowmax(T.zeros(cfg, 4, 8) * (T.full_rows(cfg, 4, 1.0) + x))


@T.kernel
def whole_quotients_of_floats(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """floordiv: needs rows of i32, got 4 rows of f32"""
    T.rowmax(T.zeros(cfg, 4, 8) * (T.full_rows(cfg, 4, 1.0) // T.full_rows(cfg, 4, 2.0)))


@T.kernel
def quotients_of_integers(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """truediv: needs rows of f32, got 4 rows of i32"""
    T.rowmax(T.zeros(cfg, 4, 8) * (T.row_index(cfg, 4) / 2))


@T.kernel
def axes_swapped_at_run_time(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """transposed: swap must be known when the kernel is compiled"""
    T.rowmax(T.load_tile(cfg, T.transposed(x, x.shape[0] > 3), (0,), 0, 8, T.row_index(cfg, 4) < 4))


@T.kernel
def negative_of_a_tile(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """neg: tiles have [+] - [*] only"""
    T.rowmax(-T.zeros(cfg, 4, 8))


@T.kernel
def either_of_two_comparisons(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """or: 4 rows of i1 and 4 rows of i1: there is no such operator"""
    row = T.row_index(cfg, 4)
    T.store_rows(x, (row, 0), T.full_rows(cfg, 4, 1.0), (row < 1) | (row > 2))


@T.kernel
def sum_of_comparisons(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """add: needs rows of f32 or i32, got 4 rows of i1"""
    row = T.row_index(cfg, 4)
    T.store_rows(i, (row, 0), (row < 1) + (row > 2), row < 4)


@T.kernel
def smaller_of_two_numbers(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """minimum: needs rows, got int64 and int64"""
    T.full_rows(cfg, 4, T.minimum(x.shape[0], x.shape[1]))


@T.kernel
def first_column_that_is_a_float(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """load_tile: col0 must be an integer, got float64"""
    row = T.row_index(cfg, 4)
    T.rowmax(T.load_tile(cfg, x, (row,), 0.5, 8, row < 4))


@T.kernel
def element_of_a_tile(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """getitem: a tile [4, 8] has no elements to pick"""
    T.full_rows(cfg, 4, T.zeros(cfg, 4, 8)[0])


@T.kernel
def stage_and_a_number(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """add: needs rows, got a stage [8, 16] of float32 and int64"""
    T.finish(T.stage(cfg, x, 8, 16) + 1)


@T.kernel
def scale_that_is_rows(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """softmax_end: scale must be a number, got 4 rows of f32"""
    m = T.full_rows(cfg, 4, 0.0)
    T.softmax_end(m, m, m, T.zeros(cfg, 4, 8))


@T.kernel
def left_in_use(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """a stage has a window in use at the end of the kernel: release it"""
    st = T.acquire(T.fetch(T.stage(cfg, x, 8, 16), 0))
    T.rowmax(T.dot_tn(st, st))


@T.kernel
def left_on_its_way(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """a stage has a window on its way at the end of the kernel: acquire and release it, or call T.finish"""
    st = T.fetch(T.stage(cfg, x, 8, 16), 0)
    for k0 in range(0, x.shape[0], 8):
        st = T.fetch(T.acquire(st), k0 + 8)
        T.rowmax(T.dot_tn(st, st))
        st = T.release(st)


def decides(x):
    return x if x > 0.0 else -x


def halved(x):
    return x * 0.5


@T.kernel
def function_that_decides(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """map: decides: a number is not known while the function is traced, so it decides nothing"""
    T.rowmax(T.map(decides, T.zeros(cfg, 4, 8)))


@T.kernel
def function_of_fewer_values(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """map: needs 1 values for x of halved, got 2"""
    T.rowmax(T.map(halved, T.zeros(cfg, 4, 8), 2.0))


@T.kernel
def tile_in_place_of_a_function(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """map: the function must be a function of numbers that a module defines, got a tile [4, 8]"""
    T.rowmax(T.map(T.zeros(cfg, 4, 8), T.zeros(cfg, 4, 8)))


@T.kernel
def mapped_integers(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """map: needs rows of f32, got 4 rows of i32"""
    T.store_rows(x, (0, 0), T.map(halved, T.row_index(cfg, 4)), T.row_index(cfg, 4) < 4)


def times(x, y):
    return x * y


@T.kernel
def mapped_with_a_tile_of_another_shape(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """map: a tile [4, 8] and a tile [4, 16] do not match"""
    T.rowmax(T.map(times, T.zeros(cfg, 4, 8), T.zeros(cfg, 4, 16)))


@T.kernel
def mapped_with_a_tensor(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """map: cannot combine a tile [4, 8] with a tensor of float32 with 2 axes"""
    T.rowmax(T.map(times, T.zeros(cfg, 4, 8), x))


#: What only a compiler can know: what is known when the kernel is compiled, and all of its stages.
COMPILED = [
    stages_larger_than_shared_memory_together, shape_known_at_run_time_only, count_known_at_run_time_only,
    part_known_at_run_time_only, stage_that_may_be_of_pages, axes_swapped_at_run_time,
]  # fmt: skip
BOTH = [f for f in list(globals().values()) if hasattr(f, "parameters") and f not in COMPILED]


def refuse(launch, kernel, arch):
    x, i = np.full((16, 16), 3, np.float32), np.full((16, 16), 3, np.int32)
    expected = inspect.getdoc(kernel).replace("[", r"\[").replace("]", r"\]")
    expected = expected.replace(r"\[+\]", "[+]").replace(r"\[*\]", "[*]")
    with pytest.raises((TileError, AttributeError), match=expected) as error:
        launch(kernel, Config(arch=arch), (1, 1, 1), x, i)
    assert (x == 3).all() and (i == 3).all()
    return str(error.value)


@pytest.mark.parametrize("kernel", BOTH, ids=lambda k: k.__name__)
def test_misuse_is_refused_in_the_same_words_by_the_interpreter_and_by_compilers(launch, kernel):
    from rocmkern.targets.cpu import host_architecture

    arch = host_architecture()
    interpreted, compiled = refuse(launch, kernel, "python"), refuse(launch, kernel, arch)
    assert interpreted.replace("python has", f"{arch} has") in compiled
    assert compiled.startswith(
        (f"kernel {kernel.__name__} for Config(arch={arch!r}", f"kernel {kernel.__name__}, line")
    )
    assert len(compiled) < 600, "an error is a sentence, not a compiler's report"


@pytest.mark.parametrize("kernel", COMPILED, ids=lambda k: k.__name__)
def test_what_is_not_known_when_a_kernel_is_compiled_is_refused(launch, kernel):
    from rocmkern.targets.cpu import host_architecture

    assert len(refuse(launch, kernel, host_architecture())) < 500


@T.kernel
def used_again(cfg, x: T.Tensor[2], i: T.Tensor[2]):
    """consumed by exp2 .*cannot be used again"""
    t = T.zeros(cfg, 4, 8)
    u = T.exp2(t)
    T.rowmax(u)
    T.rowmax(t)


def test_a_consumed_tile_is_refused_when_it_is_used_again(launch, arch):
    if arch == "python":
        with pytest.raises(TileError, match="this tile was consumed by exp2 and cannot be used again"):
            used_again(Config(), np.zeros((4, 8)), np.zeros((4, 8)))
    else:
        assert "kernel used_again, line" in refuse(launch, used_again, arch)


def arguments_of(operation):
    """Arguments for each operation that consumes something, by parameter name."""
    cfg = T.Config()
    source = np.ones((8, 8), np.float32)
    stages = {
        "fetch": lambda: T.stage(cfg, source, 8, 8),
        "acquire": lambda: T.fetch(T.stage(cfg, source, 8, 8), 0),
        "paged": lambda: T.stage(cfg, source, 8, 8, source, True),
        "finish": lambda: T.stage(cfg, source, 8, 8),
    }
    ready = lambda: T.acquire(stages["acquire"]())  # noqa: E731
    tile, rows = lambda: T.zeros(cfg, 8, 8), T.full_rows(cfg, 8, 0.0)
    values = {
        "x": tile, "tile": tile, "visible": tile, "s": tile, "acc": tile, "col0": lambda: 0, "scale": lambda: 1.0,
        "low": lambda: T.row_index(cfg, 8), "high": lambda: T.row_index(cfg, 8), "m": lambda: rows, "l": lambda: rows,
        "like": (lambda: source) if operation == "rounded" else ready, "row0": lambda: 0, "stop": lambda: 8,
        "value": lambda: 0.0, "transposed": lambda: True, "st": stages.get(operation, ready), "b": ready,
        "a": ready if operation == "dot_tn" else lambda: T.operand(tile(), ready()), "cos": tile, "sin": tile,
        "cache": lambda: source[None, None], "head": lambda: 0, "table": lambda: np.zeros(1, np.int32),
        "bound": lambda: 0.5, "factor": tile, "summand": tile,
    }  # fmt: skip
    if operation == "rotate":
        values |= {"a": tile, "b": tile}
    if operation == "multiply_rows":
        values |= {"scale": lambda: rows, "factor": lambda: rows}
    return {name: values[name]() for name in T.OPERATIONS[operation].signature.parameters}


@pytest.mark.parametrize("operation", [n for n, operation in T.OPERATIONS.items() if operation.consumes and n != "map"])
def test_operations_consume_what_the_table_says(operation):
    arguments = arguments_of(operation)
    T.OPERATIONS[operation](*arguments.values())
    dead = {name for name, value in arguments.items() if getattr(value, "_dead", None)}
    assert dead == set(T.OPERATIONS[operation].consumes)


def test_a_kernel_needs_annotations():
    with pytest.raises(TileError, match=r"kernel k: argument x needs an annotation T.Tensor\[ndim\], T.Int, T.Float"):

        @T.kernel
        def k(cfg, x):
            pass


def test_an_element_type_that_no_tensor_has(launch, arch):
    if arch != "python":
        x = np.zeros((16, 16))
        with pytest.raises(TileError, match="a tensor has dtype float64; allowed: float32, float16, bfloat16, int32"):
            launch(storing_integers, Config(arch=arch), (1, 1, 1), x, x)


def test_more_windows_on_their_way_than_the_depth_are_refused():
    st = T.stage(T.Config(num_stages=2), np.zeros((8, 8), np.float32), 8, 8)
    st = T.fetch(T.fetch(st, 0), 8)
    with pytest.raises(TileError, match="fetch: 2 windows are already on their way; acquire the first of them"):
        T.fetch(st, 16)


def test_a_vector_is_as_long_as_a_row():
    x, rows = np.ones((4, 64), np.float32), np.arange(4, dtype=np.int32)
    with pytest.raises(TileError, match="matvec: a vector of 63 elements for rows of 64"):
        T.matvec(Config(arch="python"), x, (rows,), 0, 64, x[0, 1:], rows < 4)


@T.kernel
def copied(cfg, x: T.Tensor[2], out: T.Out[2]):
    rows = T.row_index(cfg, 4)
    T.store_tile(out, (rows,), 0, T.load_tile(cfg, x, (rows,), 0, 8, rows < 4), rows < 4)


@pytest.mark.parametrize("dtype", ["float64", "uint16", "complex64"])
def test_element_types_that_no_kernel_takes(launch, arch, dtype):
    x, out = np.ones((4, 8), dtype), np.zeros((4, 8), np.float32)
    with pytest.raises(TileError, match=f"kernel copied.*: a tensor has dtype {dtype}; allowed: float32, float16"):
        launch(copied, Config(arch=arch), (1, 1, 1), x, out)
    assert not out.any()


@T.kernel
def divided_rows(cfg, x: T.Tensor[2], out: T.Out[2], n: T.Float):
    rows = T.row_index(cfg, 4)
    t = T.load_tile(cfg, x, (rows,), 0, 8, rows < 4)
    total = T.rowsum(t)
    t = T.load_tile(cfg, x, (rows,), 0, 8, rows < 4)
    T.store_tile(out, (rows,), 0, t * (total / n + n / total + total / T.rowmax(t)), rows < 4)


def test_rows_are_divided_by_numbers_and_by_rows(launch, arch):
    x, out = np.arange(1, 33, dtype=np.float32).reshape(4, 8), np.zeros((4, 8), np.float32)
    launch(divided_rows, Config(arch=arch), (1, 1, 1), x, out, 8.0)
    total = x.astype(np.float64).sum(1, keepdims=True)
    np.testing.assert_allclose(out, x * (total / 8 + 8 / total + total / x.max(1, keepdims=True)), rtol=1e-6)


@T.kernel
def transposition_of_three_axes(cfg, x: T.Tensor[3], i: T.Tensor[2]):
    T.stage(cfg, T.transposed(x, True), 8, 16)


def test_two_axes_are_transposed_and_no_more(launch, arch):
    with pytest.raises(TileError, match="transposed: the tensor must have 2 axes, got"):
        launch(
            transposition_of_three_axes, Config(arch=arch), (1, 1, 1), np.zeros((2, 8, 16), np.float32),
            np.zeros((2, 2), np.int32),
        )  # fmt: skip
