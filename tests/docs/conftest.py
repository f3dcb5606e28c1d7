"""What pages take from the code is made by docs/_extension, which is no part of the package."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tools")]
