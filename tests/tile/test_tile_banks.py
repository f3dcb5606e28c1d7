"""Windows in shared memory of AMD GPUs: which banks lanes meet that access them in the same cycle."""

import itertools

import pytest

from rocmkern.architectures import architecture
from rocmkern.tile._lowering.shared.atoms import ATOMS
from rocmkern.tile._lowering.shared.banks import UNIT, places

ARCHITECTURES = ["gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"]
EXTENTS = (16, 32, 64, 128, 256)
#: Which lanes of 32 share a cycle when each reads 16 bytes: the cycle of each four lanes. See `banks` for the sources.
READ_CYCLES = {32: (0, 1, 2, 3, 1, 0, 3, 2), 64: (0, 1, 1, 0, 1, 0, 0, 1)}


def cycles_of(arch, lanes, read, width):
    """Lanes that share a cycle, as lists of lanes; where that is not known, all of a wave as one."""
    hardware = architecture(arch)
    if hardware.wave == 32:
        return [list(range(lanes))]
    if read and width == UNIT:
        cycle = [READ_CYCLES[hardware.banks][lane % 32 // 4] + 4 * (lane // 32) for lane in range(lanes)]
    else:
        cycle = [lane // (32 if read else 8) for lane in range(lanes)]
    return [[lane for lane in range(lanes) if cycle[lane] == each] for each in sorted(set(cycle))]


def window_of(gfx, lines, length, size):
    """A window of elements of so many bytes for a matrix instruction."""
    return places(gfx, lines, length * size, min(size * ATOMS[architecture(gfx).matrix].run, UNIT))


def conflicts(arch, offsets, read, width):
    """Accesses of the fullest bank beyond those of an even spread, over all cycles."""
    banks, extra = architecture(arch).banks, 0
    for lanes in cycles_of(arch, len(offsets), read, width):
        words = {(offsets[lane] + byte) // 4 for lane in lanes for byte in range(0, width, 4)}
        fullest = max(sum(word % banks == bank for word in words) for bank in range(banks))
        extra += fullest - -(-len(words) // banks)
    return extra


def fragment(arch, window, size):
    """Accesses of a wave that reads 16 lines of a window for a matrix instruction: bytes of lines, and the width."""
    atom = ATOMS[architecture(arch).matrix]
    width = min(size * atom.run, UNIT)
    for start in range(0, size * atom.run, width):
        byte = [lane // 16 * atom.run_step * size + start for lane in range(atom.wave)]
        yield [window.place(lane % 16 * window.pitch + byte[lane]) for lane in range(atom.wave)], width


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("gfx", ARCHITECTURES)
def test_no_two_bytes_share_a_place_and_all_are_inside(gfx, size):
    for lines, length in itertools.product((16, 48, 64), (16, 48, 128)):
        window = window_of(gfx, lines, length, size)
        taken = {window.place(line * window.pitch + byte) for line in range(lines) for byte in range(length * size)}
        assert len(taken) == lines * length * size
        assert min(taken) >= 0 and max(taken) < window.bytes


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("gfx", ARCHITECTURES)
def test_a_place_follows_from_another_one(gfx, size):
    for length in (16, 48, 64, 256):
        window = window_of(gfx, 64, length, size)
        for x, y in itertools.product(range(0, 16 * window.pitch, UNIT), range(0, 64, 16)):
            turn, more = window.ahead(y * window.pitch)
            assert window.place(x + y * window.pitch) == (window.place(x) ^ turn) + more


@pytest.mark.parametrize("gfx", ARCHITECTURES)
def test_products_read_without_conflicts(gfx):
    sizes = (2, 4) if "float32" in ATOMS[architecture(gfx).matrix].intrinsics else (2,)
    for size, lines, length in itertools.product(sizes, EXTENTS, EXTENTS):
        window = window_of(gfx, lines, length, size)
        for offsets, width in fragment(gfx, window, size):
            assert not conflicts(gfx, offsets, True, width), (lines, length, size)


@pytest.mark.parametrize("gfx", ARCHITECTURES)
def test_rows_are_written_without_conflicts(gfx):
    for size, length in itertools.product((2, 4), EXTENTS):
        window = window_of(gfx, 64, length, size)
        units, lanes = length * size // UNIT, architecture(gfx).wave
        offsets = [window.place(lane // units * window.pitch + lane % units * UNIT) for lane in range(lanes)]
        assert not conflicts(gfx, offsets, False, UNIT), (length, size)


@pytest.mark.parametrize("gfx", ARCHITECTURES)
def test_columns_are_written_without_conflicts(gfx):
    for size, wide, lines, length in itertools.product((2, 4), (2, 4, 8), EXTENTS, EXTENTS):
        across, window = lines // wide, window_of(gfx, lines, length, size)
        if across < 8:
            continue  # only in waves of 32, of which it is not known which lanes share a cycle
        lanes = min(architecture(gfx).wave, across * length * size // UNIT)
        offsets = [window.place(lane % across * wide * window.pitch + lane // across * UNIT) for lane in range(lanes)]
        assert not conflicts(gfx, offsets, False, UNIT), (lines, length, size, wide)
