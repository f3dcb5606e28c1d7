"""The published page: support, accuracy and speed from the results of one or several runs and machines.

`summary` turns runs into tables of plain data; `html` and `markdown` write them down; `plots` draws.
"""

from __future__ import annotations

from rocmkern.matrix.report.html import page
from rocmkern.matrix.report.markdown import text
from rocmkern.matrix.report.summary import Summary, summarise

__all__ = ["Summary", "page", "summarise", "text"]
