"""Who is decoded next, and the loop that drives rows from prompt to committed result."""
