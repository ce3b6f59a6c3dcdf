"""A head for the client's own classes only (PFLEGO, FedRecon, PFLEGO's FedPer)."""

from idiolect.core.method import Local, Tree

NEVER = -1e9  # bias of classes a client does not have


def own_class_head(start: Tree, local: Local, uniform: bool) -> Tree:
    """Rows of other classes have weight 0 and a bias so low that their probability is exactly 0, so
    that they never move and the model stays a plain module. The others are `uniform` in [0, 1), by
    client, or as in `start`."""
    local.net.biased_head()
    absent = local.counts == 0  # [K, classes]
    head = {}
    for n in local.net.head:
        own = local.uniform(start[n].shape[1:], f"head/{n}") if uniform else start[n]
        where = absent.view(*absent.shape, *[1] * (own.ndim - 2))
        head[n] = own.masked_fill(where, NEVER if n.endswith("bias") else 0.0)
    return head
