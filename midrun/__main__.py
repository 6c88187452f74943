"""`python -m midrun`: the command line, for anyone without the `midrun` program on the PATH."""

from __future__ import annotations

import sys

from midrun.cli import main

if __name__ == "__main__":
    sys.exit(main())
