"""Small stand-ins for modules that peers call; this folder comes last on a peer's path.

So a module that is installed is used, and these are found only where it is not. They do what the
peers' programs ask of them before and between rounds: read settings, show progress.
"""
