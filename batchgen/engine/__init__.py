"""How tokens are made: the only room that decodes with mlx.

Importing it loads a fast BLAS first, where one is needed and found, so it comes before any import of mlx.
"""

from batchgen.engine.blas import preload

BLAS = preload()
