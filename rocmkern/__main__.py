"""``python -m rocmkern``: the command line."""

import sys

from rocmkern.cli import main

if __name__ == "__main__":
    sys.exit(main())
