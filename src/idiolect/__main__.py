"""`python -m idiolect`."""

from idiolect.cli.app import main

if __name__ == "__main__":
    main()
