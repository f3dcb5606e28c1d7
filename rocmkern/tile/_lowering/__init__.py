"""How the operations of the tile language become machine code: a package for each target, and what they share.

The files of the targets have the same names where they do the same:

===========  ==============================================================
backend      the target's numba
emit         what is emitted everywhere: vectors, loops, lanes, arithmetic
layouts      how values lie in memory or in lanes
memory       element types, loads and stores
rows         the grid, and one number for each row of a tile
tiles        tiles from and to memory
reductions   what becomes of the elements of a row
elementwise  what is done to each element by itself
positions    what depends on an element's column
rotary       rotations of pairs of elements
softmax      steps over the columns of a row
pipeline     stages
products     products with stages
quantized    blocks of quantized formats
install      all of it made known to numba
===========  ==============================================================
"""
