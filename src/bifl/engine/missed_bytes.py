"""What a simulation counts for clients that slept: the bytes that a server would send to bring them up to date."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from bifl.core.state import Public
from bifl.engine.catch_up import Journal, Step
from bifl.exchanges.exchange import Exchange, completing
from bifl.experiment.setup import Setup


class MissedBytes:
    """Counts what a server would send to clients that had missed broadcasts: to those who slept.

    It follows the public state, and keeps the last steps that a checkpoint must hold.

    Args:
        setup: what is run, with the public state as it stands.
        fresh: the public state before the first round.
        steps: the last ones, if the run was continued.
        trained: client → the last round in which it trained.
        evaluated: the last round in which all who hold samples out were asked to evaluate; 0 before the first.
    """

    def __init__(
        self, setup: Setup, fresh: Public, steps: tuple[Step, ...], trained: Mapping[int, int], evaluated: int = 0
    ) -> None:
        run, exchanges = setup.run, setup.run.exchanges
        self.public = setup.public
        self._journal = Journal(exchanges, fresh, setup.public, steps, run.in_context, run.clients_sleep, _named)
        # what all know that are not listed; whoever does not have the model that the run starts with is sent it
        self._others = "" if run.warm else _named(fresh, exchanges[-1].name)
        self._known = {number: _last_heard(exchanges, round) for number, round in trained.items()}
        if setup.public.round and not run.clients_sleep:
            self._known, self._others = {}, self._journal.name  # everyone was asked something since
        elif evaluated and any(map(len, setup.shards)):
            self._known = {number: _last_heard(exchanges, round) for number, round in trained.items() if round > evaluated}
            self._others = f"{evaluated} {exchanges[-1].name}"
        self._told: Collection[int] = range(run.clients)
        self._bytes = 0

    @property
    def steps(self) -> tuple[Step, ...]:
        """The last ones."""
        return self._journal.steps

    def ask(self, clients: Iterable[int]) -> None:
        """Clients are asked something: each is brought up to date first."""
        for number in clients:
            known = self._known.get(number, self._others)
            if known != self._journal.name:
                self._bytes += self._journal.extra(self._journal.update(known), number in self._told)
                self._known[number] = self._journal.name

    def add(self, exchange: str, news: bytes, after: Public, told: Collection[int]) -> None:
        """A broadcast is told to some."""
        self.public, self._told = after, frozenset(told)
        self._journal.add(exchange, news, after)

    def settle(self) -> int:
        """The bytes since the last call."""
        found, self._bytes = self._bytes, 0
        return found


def _last_heard(exchanges: Sequence[Exchange], round: int) -> str:
    """The state that a client knows that last took part in this round: the one before the round's last exchange."""
    telling = [exchange for exchange in exchanges if exchange.tells]
    complete = completing(exchanges) is not telling[-1]
    return f"{round if complete else round - 1} {telling[-2:][0].name}"


def _named(public: Public, exchange: str) -> str:
    """A name for the state that an exchange of a round led to: in a simulation there is only one."""
    return f"{public.round} {exchange}"
