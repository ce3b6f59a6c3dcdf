"""Data of the user's own: files and folders (`--data table.csv`), or a function of the user's."""
