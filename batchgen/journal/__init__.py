"""What is done: the run folder beside the output, its parts, its log, its lock, and how a killed run is picked up."""
