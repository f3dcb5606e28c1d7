"""The tile language on AMD GPUs: a block is `waves` waves, and a tile lies in the registers of its lanes.

Layout. A wave owns consecutive tile rows, 16 at a time. Lane ``l`` holds row ``l % 16`` of such a row block, and the
lane groups ``l // 16`` share its columns as `atoms.Atom` says (8 instead of 16 where a configuration asks for it). This
is the layout of a *transposed* product (``S^T = K Q^T``), in which a query row belongs to a lane: row statistics are
almost local, and weights become the operand of the next product without leaving it (one exchange of half-waves on
gfx11, none elsewhere).

=========  ==========================================================================================================
Rows       one value per row block; lane groups hold copies
Tile       float32, a vector of ``atom.registers`` for every (row block, 16 columns)
Operand    for matrix instructions a run of ``atom.run`` elements for every (row block, 16 elements of the reduced
           axis), in shared memory where they would take too many registers (see `Parked`); where there are none for
           the dtype it is stored as a Tile
Stage      a window in shared memory, and the next window in registers on its way there
=========  ==========================================================================================================

The configuration of a kernel without products may ask for rows along lanes instead: see `LineLayout`.

float32 products are float32 FMAs: those of CDNA's matrix instructions, elsewhere of the vector unit. For the latter,
shared memory holds the 16 columns of a tile permuted so that a lane group's columns are consecutive (on gfx11).

A matrix instruction wants the reduced axis contiguous, so `dot_nt` reads a stage row by row, and `dot_nn` and `dot_tn`
read it column by column. A stage for matrix instructions therefore has two copies, and LLVM deletes the one that no
product reads, with everything that fills it (a local variable that is only written to is dead: its GlobalOpt pass).
"""

from rocmkern.tile._lowering.hip.backend import bound_config
from rocmkern.tile._lowering.hip.install import install

__all__ = ["bound_config", "install"]
