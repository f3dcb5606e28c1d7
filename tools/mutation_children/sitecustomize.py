"""For Python processes that a recorded test starts: they tell which lines they run (see `tools/mutation_lines.py`)."""

import mutation_lines

mutation_lines.in_child()
