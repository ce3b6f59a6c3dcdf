"""The same methods across real sites: a Flower ClientApp and ServerApp (extra `deploy`).

    wire        what a message is: JSON and one safetensors block, never pickle
    site        what a client does with a request; knows no Flower
    memory      the client's state on its disk, committed before the reply
    own         a client's own data: a file, a folder or a function
    check       every reply is held against what this round's reply must look like
    pattern     … which the method itself tells, on made-up samples
    ledger      who is idle, busy or gone, and which messages are out
    desk        greets nodes, seats clients, sends requests, judges answers
    scores      what clients told of their tests
    hub         the server's round loop; a `Simulation` whose clients are elsewhere
    conduct     one experiment from its run directory
    grid        the hub's messages as Flower messages
    apps        ServerApp and ClientApp
    worker      a long-lived client process that runs only what is installed at the site
    door        the one port that is open to the world: fleet paths, nothing else
    launch      SuperLink and SuperNode with safe defaults
    credentials certificates and node keys

Only `grid`, `apps` and `worker` import Flower.
"""
