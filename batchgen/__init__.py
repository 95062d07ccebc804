"""batchgen: offline batch generation with MLX and block-draft speculative decoding."""

__version__ = "0.1.0"
