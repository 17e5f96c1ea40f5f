"""What an algorithm adds to the local steps of its clients: to the gradient, or to the loss.

A step of local training moves the trained weights w by the gradient of the loss on a batch, plus

    correction + pull · (w − centre) + gradient of `loss` at w

FedProx is a pull towards the weights that the round began with, SCAFFOLD a correction by how clients' gradients differ.

>>> Local(pull=0.01)
Local(correction=None, pull=0.01, centre=None, loss=None)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from bifl.core.message import Floats

if TYPE_CHECKING:
    from torch import Tensor


class Local(NamedTuple):
    """What every local step of one client in one round adds.

    Attributes:
        correction: (count,) what is added to the gradient w.r.t. the coded weights; None adds nothing.
        pull: µ of µ/2·‖w − centre‖² in the loss, over the coded weights and the trained real parameters.
        centre: (count,) weights and (reals,) real parameters; None takes those that this training begins with.
        loss: coded weights → a further term of the loss, a differentiable scalar in PyTorch.
    """

    correction: Floats | None = None
    pull: float = 0.0
    centre: tuple[Floats, Floats] | None = None
    loss: Callable[[Tensor], Tensor] | None = None


PLAIN = Local()
