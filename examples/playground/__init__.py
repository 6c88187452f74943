"""A slow training run to try midrun on by hand."""
