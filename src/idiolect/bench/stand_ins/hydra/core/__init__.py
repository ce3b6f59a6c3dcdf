"""Part of the stand-in for hydra."""
