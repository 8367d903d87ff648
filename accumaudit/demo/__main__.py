"""One rank of a demo: `torchrun --nproc-per-node 2 -m accumaudit.demo fixed-divisor-tail runs/tail`."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from accumaudit.demo.launching import run_rank


def main() -> None:
    """Train, then leave without the interpreter's farewell."""
    name, log_dir = sys.argv[1:]
    status = 0
    try:
        run_rank(name, Path(log_dir))
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # gloo's threads now and then abort a process that ends in the ordinary way.
    os._exit(status)


if __name__ == "__main__":
    main()
