"""`python -m idiolect`."""

from idiolect.cli import app

if __name__ == "__main__":
    app(prog_name="idiolect")
