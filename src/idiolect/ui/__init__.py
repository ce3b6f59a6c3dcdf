"""The live page over run directories: `idiolect ui`."""
