"""What an algorithm is made of: messages, states, random streams, exact sums, the paper's rules.

    from bifl import core
    from bifl.core import BINARY, Algorithm, Client, Message, Public

Numpy only: importing it does not wait for PyTorch. docs/adding-an-algorithm.md shows how the parts fit together.
"""

# ruff: noqa: I001
# fmt: off
from bifl.core.algorithm import (
    VOTES, WEIGHTS, Absorb, Algorithm, Broadcast, Reads, Schedule, Selects, Update, Upload, forward_of, in_full, register,
    require, take_over,
)
from bifl.core.compression import behind_rows, compress_broadcast
from bifl.core.forward import Forward, Latent, Local, binary, real, ternary
from bifl.core.layout import Layout, mean_magnitude
from bifl.core.message import (
    BINARY, FLOAT16, FLOAT32, NOTHING, TERNARY, UPDATE, Alphabet, Floats, Message, Selection, Selections, Vector, Votes,
    even_levels, halves,
)
from bifl.core.randomness import (
    dithered_signs, random_levels, random_positions, random_signs, random_words, round_at_random, stream, stream_seed,
)
from bifl.core.rotation import MOST_IN_GROUP, groups, loud_alphabet, loudest, rotate, rotated_length, spread, unrotate
from bifl.core.rules import (
    apply_change, blend, blend_signs, change, floats, majority, means, ml_pu, replace, rounded_votes, scaled_change, sign, signs,
    votes,
)
from bifl.core.state import Client, Judge, Public, Sent, Server, recall
from bifl.core.sums import ExactSum, Tally, Total, VectorTally, mean

__all__ = [
    "BINARY", "FLOAT16", "FLOAT32", "MOST_IN_GROUP", "NOTHING", "TERNARY", "UPDATE", "VOTES", "WEIGHTS", "Absorb", "Algorithm",
    "Alphabet", "Broadcast", "Client", "ExactSum", "Floats", "Forward", "Judge", "Latent", "Layout", "Local", "Message", "Public",
    "Reads", "Schedule", "Selection", "Selections", "Selects", "Sent", "Server", "Tally", "Total", "Update", "Upload", "Vector",
    "VectorTally", "Votes", "apply_change", "behind_rows", "binary", "blend", "blend_signs", "change", "compress_broadcast",
    "dithered_signs", "even_levels", "floats", "forward_of", "groups", "halves", "in_full", "loud_alphabet", "loudest",
    "majority", "mean", "mean_magnitude", "means", "ml_pu", "random_levels", "random_positions", "random_signs", "random_words",
    "real", "recall", "register", "replace", "require", "rotate", "rotated_length", "round_at_random", "rounded_votes",
    "scaled_change", "sign", "signs", "spread", "stream", "stream_seed", "take_over", "ternary", "unrotate", "votes",
]
