"""Lets `python -m batchgen.training` make the bundled pair.

Worker processes import this file too, so it imports nothing of weight before it is run as a program.
"""

if __name__ == "__main__":
    from batchgen.training.cli import main

    main()
