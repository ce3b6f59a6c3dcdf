"""A run is a directory: settings, execution, checkpoints, exports, comparisons."""
