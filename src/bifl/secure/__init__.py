"""The secure sum: what a server learns is a sum of integers, not one client's summand (Bonawitz et al., CCS 2017).

primitives  what cryptography and pycryptodome give: key agreement, key streams, sealed letters, shares of a secret
integers    messages as integers of fixed width, the masks that clients add, and sums as totals
cards       what all agree on, keys that clients sign, and the letters that the server passes on
member      a client's part, step by step
unmasking   the server's part
identities  what clients sign with

Nothing here knows a network, an engine or Flower; `bifl.exchanges.secure_sum` makes exchanges of it. The modules need the extra
`bifl[secure]`; what stands in this file does not, and is there for all runs.
"""

WEIGHT_LIMIT = 2**6  # |uploaded weights| are below this
REAL_LIMIT = 2**24  # |real parameters|, statistics and scales| are below this


def threshold(clients: int, colluders: int) -> int:
    """k: how many clients must be left so that no sum tells of fewer; 2k > n + colluders."""
    return (clients + colluders) // 2 + 1
