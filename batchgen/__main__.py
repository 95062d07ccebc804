"""Lets `python -m batchgen` do what the `batchgen` script does."""

from batchgen.cli import main

if __name__ == "__main__":
    main()
