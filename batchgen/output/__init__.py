"""What a run leaves and shows while it goes: the final file, the definitions of its figures, progress."""
