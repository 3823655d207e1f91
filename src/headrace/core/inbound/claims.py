"""Whose an SN is: decided in one place, the shard that is the home of its client id, by whatever connection it comes.

Runs on the loop. Devices behind a gateway speak on a connection that is bound to the shard of one of them. Where another
one is at home elsewhere, its home is asked, and the connection waits; the answer is given when it is durable there. The
home knows MQTT sessions of that client id, too. A question may come twice: the answer is the same.
"""

from __future__ import annotations

from functools import partial

from headrace.core.commit import GroupCommit
from headrace.core.inbound.connect import Sessions
from headrace.core.ports.access import PENDING
from headrace.core.ports.link import Link, WorkerPort
from headrace.core.records.queue_record import DEVICE_OWNED, queue_record
from headrace.core.shards.peer import Hearing, Wire
from headrace.core.shards.queue_frames import Claimed, Decided, Told
from headrace.core.state.session import OWN_PREFIXES
from headrace.core.state.state import Fold
from headrace.core.state.tenant import Tenant
from headrace.mqtt import reason_codes as rc


class Claimant:
    """Goes on with a connection once the home of a device has answered whether it may speak there."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def decided(self, code: int) -> None:
        """Go on with it, or refuse it with a reason code."""
        raise NotImplementedError


class OtherHomes:
    """Asks the homes of devices that are at home in other shards. A shard alone has none of these, and asks nobody."""

    def ask(self, client_id: str, claimant: Claimant) -> None:
        """Ask the home of a device whether it may speak on a connection here."""
        raise NotImplementedError


class Owners:
    """Says whose the devices are that are at home in this shard; `far` asks the homes of others."""

    def __init__(self, fold: Fold, commit: GroupCommit, worker: WorkerPort, sessions: Sessions) -> None:
        self.far = OtherHomes()
        self._fold = fold
        self._commit = commit
        self._worker = worker
        self._sessions = sessions

    def of(self, tenant: Tenant, client_id: str) -> str | None:
        """Return the user whom a client id that is at home here belongs to, as the SN of a device or else as that of a
        session; None: nobody."""
        owner = tenant.devices.owners.get(client_id)
        if owner is None:
            session = self._sessions.absences.present(tenant, client_id)
            return None if session is None else session.owner
        return owner

    def is_home(self, link: Link, client_id: str) -> bool:
        """Return whether it is decided here who may speak as this device."""
        return self._fold.tenant_of(link).devices.is_home(client_id)

    def claim(self, client_id: str, claimant: Claimant) -> int:
        """Return 0 where the device is nobody's, or of the user of this connection: one that was nobody's is the user's
        from now on. Else the reason code of a refusal; PENDING: the home of the device answers to `claimant`."""
        link = claimant.link
        if self.is_home(link, client_id):
            return self.decide(self._fold.tenant_of(link), client_id, link.identity.user)
        self.far.ask(client_id, claimant)
        return PENDING

    def decide(self, tenant: Tenant, client_id: str, user: str | None) -> int:
        """Return what `claim` does, at the home of the device."""
        if client_id.startswith(OWN_PREFIXES):
            return rc.CLIENT_IDENTIFIER_NOT_VALID
        owner = self.of(tenant, client_id)
        if owner is not None and owner != user:
            return rc.NOT_AUTHORIZED
        if user is None or client_id in tenant.devices.owners:
            return rc.SUCCESS
        if tenant.devices.owned_by(user) >= tenant.limits.user_devices_max:
            return rc.QUOTA_EXCEEDED
        self._own(tenant, client_id, user)
        return rc.SUCCESS

    def adopt(self, tenant: Tenant, client_id: str, user: str) -> None:
        """Take over whose a device is from a shard that has decided it by itself once, unless it is known."""
        if self.of(tenant, client_id) is None:
            self._own(tenant, client_id, user)

    def _own(self, tenant: Tenant, client_id: str, user: str) -> None:
        fields: dict[str, object] = {"t": tenant.name, "c": client_id, "u": user}
        self._commit.append(queue_record(DEVICE_OWNED, self._worker.clock.now_us, fields))
        tenant.devices.own(client_id, user)


class Question:
    """A claim on its way to the home of a device; it is given up at `until_ms`."""

    def __init__(self, home: int, frame: Claimed, claimant: Claimant, until_ms: int) -> None:
        self.home = home
        self.frame = frame
        self.claimant = claimant
        self.until_ms = until_ms


class FarOwners(OtherHomes):
    """Asks the homes of devices that speak here, and answers the shards where devices of this one speak."""

    def __init__(
        self, fold: Fold, commit: GroupCommit, owners: Owners, worker: WorkerPort, answer_within_ms: int
    ) -> None:
        self._fold = fold
        self._commit = commit
        self._owners = owners
        self._worker = worker
        self._answer_within_ms = answer_within_ms
        self._wires: dict[int, Wire] = {}
        self._asked: dict[int, Question] = {}
        self._number = 0

    # The shard where a device speaks

    def ask(self, client_id: str, claimant: Claimant) -> None:
        identity, clock = claimant.link.identity, self._worker.clock
        home = self._worker.homes.of_client(identity.tenant, client_id)
        self._number += 1
        frame = Claimed(self._number, identity.tenant, client_id, identity.user)
        question = Question(home, frame, claimant, clock.mono_ms + self._answer_within_ms)
        self._asked[self._number] = question
        wire = self._wires.get(home)
        if wire is not None:
            wire.say(frame)

    def reached(self, home: int, wire: Wire) -> None:
        """Note a new wire to a home: it is asked what was not answered on the one before."""
        self._wires[home] = wire
        for tenant in self._fold.tenants.values():
            for client_id, user in tenant.devices.strays.items():
                if self._worker.homes.of_client(tenant.name, client_id) == home:
                    wire.say(Told(tenant.name, client_id, user))
        for question in self._asked.values():
            if question.home == home:
                wire.say(question.frame)

    def cut(self, home: int) -> None:
        """Note that there is no wire to a home any more."""
        self._wires.pop(home, None)

    def hears(self, of_home: Hearing[Wire], of_follower: Hearing[Wire]) -> None:
        """Say what is done with what the homes of devices answer, and with what other shards ask this one as a home."""
        of_home.on(Decided, self._decided)
        of_follower.on(Claimed, self._claimed)
        of_follower.on(Told, self._told)

    def _decided(self, wire: Wire, frame: Decided) -> None:
        """Go on with the connection for which a home has answered."""
        question = self._asked.pop(frame.connection, None)
        if question is not None:
            self._answer(question, frame.code)

    def on_timer(self) -> None:
        """Refuse those whose home has been away for too long."""
        if not self._asked:
            return
        now_ms = self._worker.clock.mono_ms
        for number, question in list(self._asked.items()):
            if question.until_ms > now_ms:
                return  # they are asked in the order of their times
            del self._asked[number]
            self._answer(question, rc.SERVER_UNAVAILABLE)

    def _answer(self, question: Question, code: int) -> None:
        """Go on with a connection, one of many: what is raised costs no other one."""
        link = question.claimant.link
        if link.closed:
            return
        try:
            question.claimant.decided(code)
        except Exception as error:  # noqa: BLE001
            self._worker.contain("read", link, error)

    # The home of a device

    def _claimed(self, wire: Wire, frame: Claimed) -> None:
        """Answer a shard where a device of this one wants to speak, when the answer is durable."""
        code = self._owners.decide(self._fold.make(frame.tenant), frame.client_id, frame.user)
        self._commit.then(None, partial(wire.say, Decided(frame.connection, code)))

    def _told(self, wire: Wire, frame: Told) -> None:
        self._owners.adopt(self._fold.make(frame.tenant), frame.client_id, frame.user)
