"""From Parquet files to prompts, and from prompts to tokens and back.

Reads the input in small batches, in the order of a recorded list of files. A row that cannot become a prompt is a
`RowError`; only what is wrong with the job or the files as a whole is raised. Nothing here imports mlx.
"""
