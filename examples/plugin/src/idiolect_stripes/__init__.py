"""A method, a split, a model and a metric for Idiolect."""
