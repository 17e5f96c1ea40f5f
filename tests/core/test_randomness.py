"""What is drawn from the named streams, as golden numbers: the same seed gives the same run in every later version, or says so."""

from __future__ import annotations

import numpy as np

from bifl.core import stream
from bifl.engine.round import sampled
from bifl.experiment.setup import cut, hold_out


def test_who_votes_is_golden() -> None:
    """Before version 0.2 the draw of a round was also client 1's key in that round: [0, 2, 7], [2, 7, 8], [0, 7, 9]."""
    drawn = [sampled(0, 10, 3, round) for round in (1, 2, 3)]
    assert drawn == [[1, 4, 8], [1, 7, 9], [4, 8, 9]]


def test_the_order_of_batches_is_golden_and_its_own() -> None:
    """Before version 0.2 an algorithm that drew from its client's key, as the documentation advised, drew this order again."""
    assert stream(0, 1, 0, "batches").permutation(10).tolist() == [4, 5, 8, 3, 2, 9, 6, 0, 7, 1]
    assert stream(0, 1, 0, "rotation").permutation(10).tolist() != [4, 5, 8, 3, 2, 9, 6, 0, 7, 1]


def test_what_is_held_out_is_golden() -> None:
    assert cut(np.arange(10), 0.3, 0, 1)[1].tolist() == [1, 4, 7]
    assert hold_out(20, 0.2, 0)[0].tolist() == [1, 3, 4, 15]
