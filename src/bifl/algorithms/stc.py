"""STC, sparse ternary compression (Sattler et al., 2019): both ways the largest changes, as their signs and one magnitude.

Both ends remember what they could not say: the clients of their updates, the server of the mean. Its authors code the places by
Golomb's code; our coder takes what they are worth.
"""

from __future__ import annotations

from bifl import core
from bifl.algorithms.quantised import average_of, change_and_error
from bifl.core import Client, Message, Public
from bifl.core.compression import MOST_ONE_IN, largest_code


@core.register
def stc(one_in: int = 100, down: str = "") -> core.Algorithm:
    """STC: both ways the largest changes, one weight in `one_in`, as signs and one magnitude; both ends remember the others.

    Take it where few clients take part in every round; those that come and go lose what they remember.
    """
    core.require(2 <= one_in <= MOST_ONE_IN, "one_in", one_in, f"from 2 to {MOST_ONE_IN}")

    def upload(client: Client, public: Public) -> core.Sent:
        change, layout = change_and_error(client, public), public.layout
        vector = largest_code(change, layout, one_in=one_in)
        message = Message.of(vector.symbols, vector.alphabet, client.real, vector.scales[:1])
        return core.Sent(message, memory=change - vector.values() * layout.per_weight(vector.scales))

    def reads(message: Message, public: Public) -> Message:
        return core.apply_change(message, public, message.update.values() * message.update.scales[0])

    return average_of(upload, reads, down or f"top{one_in}", keeps=("memory",))
