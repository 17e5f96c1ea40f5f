"""A client's part in the secure sums of a round. It believes nothing that the server says.

keys → shares → upload → agree → reveal; a round may have several sums, with keys and seeds of their own, and one key agreement.
A client says each thing once: the same request gives the same answer again, another one is refused. It reveals shares only for a
list of survivors that enough clients have signed, of every other client either the share of its key or that of its own mask. Once
it has revealed, it takes part in no other sum of that round, nor of one before it, whatever it was asked for since: in a round that
is held again only with the same survivors.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Hashable, MutableMapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any

from bifl.core.message import Message
from bifl.core.sides import Identity
from bifl.core.sums import LARGEST_WEIGHT
from bifl.errors import Refused
from bifl.secure import cards
from bifl.secure.cards import Card, Secret, SumTerms
from bifl.secure.integers import Sum, add_own, add_pair, direction, fields, pack, summands
from bifl.secure.primitives import SECRET, Random, agree_key, commitment, public_key, seal, split, unseal

NOTE = "secure_sum"
PAST = "past"  # what outlasts an attempt: the last round in which a client has revealed anything, and for which survivors
NEVER: dict[str, Any] = {"round": 0, "lists": {}}


@dataclass(frozen=True)
class Member:
    """One client in one round."""

    notes: MutableMapping[str, bytes]  # what it keeps between two requests
    identity: Identity  # its keys, and those of the others
    number: int
    weight: int  # of its summands
    terms: SumTerms
    random: Random = token_bytes  # so many random bytes that nobody else has

    # ---- step by step ------------------------------------------------------------------------------------------------

    def keys(self, history: bytes) -> bytes:
        """Fresh keys, signed: the beginning of a round, or of another attempt at it. What was secret before is forgotten.

        `history` is a digest of all that this client's memory was made of but its own data.
        """
        past, round = self._read().get(PAST, NEVER), self.terms.round
        if past["round"] > round:
            raise Refused(f"this client has taken part in a secure sum of round {past['round']}: it does not go back to {round}")
        secrets = [[self.random(SECRET), self.random(SECRET)] for _ in self.terms.sums]  # of the masks' key, and of the own mask
        state = {"round": round, "channel": self.random(SECRET), "seeds": secrets, "history": history}
        self._write(state | {PAST: past})
        card = Card(self.number, self.weight, self._body(state), b"")
        return card.body + self.identity.sign(self.number, card.text(round, self.terms.digest))

    def shares(self, private_reply: bytes) -> bytes:
        """Given all cards: shares of this client's secrets, sealed for every other client in order, and their marks."""
        state = self._state()
        if "roster" in state:
            self._refuse_another(state["roster"], private_reply, "keys")
            return bytes(state["dealt"])
        roster = self._check_roster(private_reply, state)
        secrets = [secret for pair in state["seeds"] for secret in pair]
        split_up = split(secrets, self.terms.least, len(roster), self.random)
        dealt = b""
        for place, card in enumerate(roster):
            if card.number != self.number:
                shares = [parts[place] for parts in split_up]
                dealt += seal(self._channel(state, card, self.number, card.number), b"".join(shares), b"")
                dealt += self.terms.marks(self.number, card.number, shares)
        self._write(state | {"roster": private_reply, "dealt": dealt})
        return dealt

    def partners(self, private_reply: bytes) -> None:
        """Given what others have sealed for this client: those who have are the partners of the round's sums."""
        state = self._state("roster")
        if "partners" in state:
            self._refuse_another(state["partners"], private_reply, "shares")
            return
        sealed = self._sealed_shares(private_reply)
        if self.number in sealed or not sealed.keys() <= {card.number for card in self._roster(state)}:
            raise Refused("the server passes shares on from clients that are not on its list of keys")
        self._refuse_few([self.number, *sealed], "have dealt shares")
        self._write(state | {"partners": private_reply})

    def alike(self, history: bytes) -> bool:
        """Whether all on the list of keys have this history: the same to all who sign who is left, as they sign that list too."""
        state = self._state("roster")
        if state.get("history") != history:
            raise Refused("this client remembers something else than when it made its keys: the round must begin again")
        return all(card.history == history for card in self._roster(state))

    def masked(self, upload: Message, name: str, place: Callable[[int], Hashable]) -> bytes:
        """An upload as a summand that is hidden by masks, which cancel among those who speak of the same model."""
        state, index = self._state("partners"), self.terms.sums.index(name)
        roster, others = self._roster(state), set(self._partners(state)) - {self.number}
        unit, own, total = cards.units(roster, place, self.number)
        form = fields(upload, own, total)
        parts, sum = summands(upload, self.weight // unit, form), Sum(name, form, self.terms.agreed)
        key_seed, mask_seed = state["seeds"][index]
        add_own(parts, mask_seed, sum, 1)
        for card in roster:
            if card.number in others:
                sign, peers = direction(self.number, card.number), place(card.number) == place(self.number)
                try:
                    add_pair(parts, key_seed, card.mask_key(index), sum, sign, peers=peers)
                except ValueError as error:
                    raise Refused(f"a key of client {card.number} is none") from error
        data = pack(parts, form.flat)
        self.once(name, data)
        return data

    def once(self, sum: str, masked: bytes) -> None:
        """Refuse to send a second summand under the same masks: the difference of two would tell that of their owners' ballots."""
        state, digest = self._state("partners"), hashlib.sha256(masked).digest()
        sent = state.get("sent", {})
        if sent.get(sum, digest) != digest:
            raise Refused("the server asks for another upload in the same secure sum: it has sent this client another model")
        self._write(state | {"sent": sent | {sum: digest}})

    def agree(self, sum: str, private_reply: bytes, place: Callable[[int], Hashable]) -> bytes:
        """Given whose summands the server has: this client's signature that it was told so."""
        state = self._state("partners")
        signed = state.get("survivors", {})
        for before in (signed, self._revealed(state)):
            if sum in before:
                self._refuse_another(before[sum], private_reply, "survivors")
        survivors = list(cards.read_addressed(private_reply, 0, self.terms.most, "survivors"))
        if self.number not in survivors or not set(survivors) <= set(self._partners(state)):
            raise Refused("the server's list of survivors lacks this client, or names one that has dealt no shares")
        self._refuse_few(survivors, "are left")
        self._refuse_exposed(survivors, survivors, place, "are left to speak")
        self._write(state | {"survivors": signed | {sum: private_reply}})
        return self.identity.sign(self.number, self._survivors_text(state, sum, survivors))

    def reveal(self, sum: str, private_reply: bytes, place: Callable[[int], Hashable]) -> bytes:
        """Given the others' signatures: what the server needs to take the masks away.

        Who has signed was there in this attempt and was told the same list: only those can be hidden among. One that is merely on
        the list may be the server's own invention, or a client whose secrets it knows.
        """
        state, index = self._state("partners"), self.terms.sums.index(sum)
        if sum not in state.get("survivors", {}):
            raise Refused("the server asks for shares before it has told who is left")
        survivors = list(cards.read_addressed(state["survivors"][sum], 0, self.terms.most, "survivors"))
        text = self._survivors_text(state, sum, survivors)
        signatures = cards.read_addressed(private_reply, cards.SIGNATURE, self.terms.most, "signatures")
        signers = [one for one, signature in signatures.items() if one in survivors and self.identity.signed(one, text, signature)]
        if len({self.number, *signers}) < self.terms.least:
            raise Refused(
                f"only {len(signers)} clients have signed the list of survivors that this client was told, "
                f"and {self.terms.least} must: the server has told others another one, or lost them"
            )
        lists = self._revealed(state) | {sum: state["survivors"][sum]}
        self._refuse_exposed([self.number, *signers], survivors, place, "have signed who is left")
        self._write(state | {PAST: {"round": self.terms.round, "lists": lists}})
        held = self._held(state)
        revealed: bytes = state["seeds"][index][1]
        for number in self._partners(state):
            if number != self.number:
                shares, secret = held.get(number), Secret(index, own_mask=number in survivors)
                revealed += b"\1" + shares[secret.place] if shares else bytes(cards.REVEALED)
        return revealed

    # ---- what it is made of ------------------------------------------------------------------------------------------

    def _revealed(self, state: dict[str, Any]) -> dict[str, bytes]:
        """The survivors for whom this client has revealed shares in this round, in whatever attempt, by sum."""
        return dict(state[PAST]["lists"]) if state[PAST]["round"] == self.terms.round else {}

    def _body(self, state: dict[str, Any]) -> bytes:
        """Of this client's card."""
        body: bytes = public_key(state["channel"])
        for key_seed, mask_seed in state["seeds"]:
            body += public_key(key_seed) + commitment(mask_seed)
        return body + bytes(state["history"])

    def _check_roster(self, private_reply: bytes, state: dict[str, Any]) -> list[Card]:
        """The cards, if each is signed by its client, and this client's own is among them as it was sent."""
        roster = cards.read_roster(private_reply, self.terms)
        self._refuse_few([card.number for card in roster], "have sent keys")
        own = (self.number, self.weight, self._body(state))
        if not any((card.number, card.weight, card.body) == own for card in roster):
            raise Refused("the server's list of keys does not hold this client's own")
        digest = self.terms.digest
        for card in roster:
            if not self.identity.signed(card.number, card.text(self.terms.round, digest), card.signature):
                raise Refused(
                    f"the keys of client {card.number} are not signed by that client's node key, as its peers know it, or for "
                    "another run, round, model or other settings"
                )
        if any(card.weight != self.terms.weighing.counts(card.weight) for card in roster):
            raise Refused("a client on the server's list would count more than once, and all count once here")
        if sum(card.weight for card in roster) > LARGEST_WEIGHT or min(card.weight for card in roster) < 1:
            raise Refused(f"the clients weigh more than {LARGEST_WEIGHT} together, or one weighs nothing")
        return roster

    def _channel(self, state: dict[str, Any], card: Card, sender: int, receiver: int) -> bytes:
        """The key of one sealed letter."""
        try:
            return agree_key(state["channel"], card.channel, f"shares {sender} {receiver}".encode())
        except ValueError as error:
            raise Refused(f"a key of client {card.number} is none") from error

    def _held(self, state: dict[str, Any]) -> dict[int, list[bytes]]:
        """The shares that others have dealt this client. A letter that cannot be opened, or has other marks, is as good as none."""
        card_of = {card.number: card for card in self._roster(state)}
        held = {}
        for number, row in self._sealed_shares(state["partners"]).items():
            key = self._channel(state, card_of[number], number, self.number)
            inside = unseal(key, row[: self.terms.sealed], b"") or b""
            shares = [inside[start : start + SECRET] for start in range(0, len(inside), SECRET)]
            if self.terms.marks(number, self.number, shares) == row[self.terms.sealed :]:
                held[number] = shares
        return held

    def _sealed_shares(self, private_reply: bytes) -> dict[int, bytes]:
        return cards.read_addressed(private_reply, self.terms.dealt, self.terms.most, "shares")

    def _survivors_text(self, state: dict[str, Any], sum: str, survivors: Sequence[int]) -> bytes:
        digest = cards.transcript(state["roster"], self._partners(state))
        return cards.survivors_text(digest, sum, survivors)

    def _roster(self, state: dict[str, Any]) -> list[Card]:
        return cards.read_roster(state["roster"], self.terms)

    def _partners(self, state: dict[str, Any]) -> list[int]:
        return sorted([self.number, *self._sealed_shares(state["partners"])])

    def _refuse_few(self, numbers: Sequence[int], what: str) -> None:
        if len(numbers) < self.terms.least:
            raise Refused(f"only {len(numbers)} clients {what}, and a secure sum needs {self.terms.least}")

    def _refuse_exposed(self, there: Sequence[int], survivors: Sequence[int], place: Callable[[int], Hashable], what: str) -> None:
        """Refuse a sum in which a part of the weights is of too few of those who are there."""
        together, speaking = max(self.terms.together, self.identity.least), Counter(map(place, {*there}))
        if min(speaking[place(one)] for one in survivors) < together:
            raise Refused(f"of a part of the weights fewer than {together} clients {what}")

    def _refuse_another(self, before: bytes, private_reply: bytes, what: str) -> None:
        if before != private_reply:
            raise Refused(f"the server tells another list of {what} than before in the same round")

    def _state(self, needs: str = "seeds") -> dict[str, Any]:
        state = self._read()
        if state.get("round") != self.terms.round or needs not in state:
            raise Refused("the server asks for a step of a secure sum whose steps before it this client has not taken")
        return state

    def _read(self) -> dict[str, Any]:
        return dict(_from_hex(json.loads(self.notes[NOTE]))) if NOTE in self.notes else {}

    def _write(self, state: dict[str, Any]) -> None:
        self.notes[NOTE] = json.dumps(state, default=bytes.hex).encode()


def _from_hex(note: Any) -> Any:
    """A note whose bytes were written as hexadecimal digits."""
    if isinstance(note, dict):
        return {key: _from_hex(value) for key, value in note.items()}
    if isinstance(note, list):
        return [_from_hex(value) for value in note]
    return bytes.fromhex(note) if isinstance(note, str) else note
