"""What the user asks for: the job file's keys, how it is read, and which of its values change answers.

Reads the job file and nothing else; never looks at the input, the model or a run folder.
"""
