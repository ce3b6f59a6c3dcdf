"""Calling the command line from a test."""

from typer.testing import CliRunner, Result

from idiolect.cli.app import app

TINY = ["--clients", "4", "--rounds", "2", "--model", "linear", "--set", "split.alpha=0.5"]


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="idiolect")
