"""The model that decides: its layers over many rows, the gated delta rule, what is supported."""
