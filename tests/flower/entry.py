"""The command line, with the deployment commands, as a child process of a test."""

from idiolect import cli, deploy_cli

if __name__ == "__main__":
    known = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    if "server" not in known:
        deploy_cli.register(cli.app)
    cli.main()
