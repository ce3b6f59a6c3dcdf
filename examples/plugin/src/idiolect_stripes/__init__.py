"""A method, a split and a model for Idiolect."""
