"""`python -m accumaudit`."""

from accumaudit.cli import main

if __name__ == "__main__":
    main(prog_name="accumaudit")
