"""The same methods on real sites, through Flower (extra `deploy`).

What travels
    sample_kind       what a site says of its samples: shape, task, metric, meaning
    messages          a message is JSON and one safetensors block, never pickle
    validate          checks of every answer before it touches the server's state
    transport         what the server needs from a network
    flower_transport  … as Flower messages
    in_process        … within one process, through the same bytes: to try a method
    incoming          answers taken off Flower's server part by part, up to their limit

The server
    terms             who may take part and how long the server waits
    client_registry   which clients take part, which requests are open, what happened
    dispatch          sends requests, passes trusted answers to their handlers
    enrolment         finds out who is online and who may take part
    client_requests   what is asked of clients, and what their answers must look like
    arrivals          what comes back and when it is used
    server            the rounds; it has the simulator's interface
    experiment        one experiment from its run directory
    run_server        `idiolect server`

A client
    client            how a client answers a request; knows no network
    local_experiment  method, network and data of one experiment, ready to compute
    site_options      what a site says of its data and training on its command line
    client_data       its data: a file, a folder or a function
    client_state      its private state on its disk
    personal_file     its personal model as a file, at the end
    worker            the process that answers requests with what is installed at the site
    run_client        `idiolect client`

Processes and security
    apps              Flower's ServerApp and ClientApp
    superlink         Flower's server on this machine
    private_superlink … as the process that runs it, for this user's processes only
    loopback_guard    which user a loopback connection comes from
    proxy             the one port that is open to others: the fleet's paths, nothing else
    fleet_rules       … and of those, answers of the site's own, of the size that was asked for
    proxy_notes       what proxy and experiment tell one another
    processes         child processes and Flower's environment
    credentials       certificates and node keys

Only `flower_transport`, `apps`, `worker`, `incoming`, `fleet_rules` and `private_superlink` import
Flower; the last four use private parts of it.
"""
