"""The laws every method must hold: the tests of Idiolect's own methods, and `idiolect check`."""
