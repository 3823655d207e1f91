"""What a shard's conversations with others (`neighbours`) ask of whoever speaks of topic queues there."""

from __future__ import annotations

from headrace.core.records.message import Message
from headrace.core.shards.peer import Hearing, Wire


class QueuePort:
    """The topic queues of one shard, and the consumers whose connections are here."""

    def hears(self, of_home: Hearing[Wire], of_follower: Hearing[Wire]) -> None:
        """Say what is done with what homes of queues say, and with what the shards of connections say, each on its newest
        wire."""
        raise NotImplementedError

    # As the shard of connections: on the wire on which it follows a home

    def reached(self, home: int, wire: Wire) -> None:
        """Note a new wire to a home."""
        raise NotImplementedError

    def cut(self, home: int) -> None:
        """Note that there is no wire to a home any more."""
        raise NotImplementedError

    # As the shard where a device has published

    def user_of(self, message: Message) -> str:
        """Return whose the device of a message is that was published here, for the home of its topic: its user, "" for
        nobody in particular, or a name that no user has where neither is known in this shard."""
        raise NotImplementedError

    # As a home: on the wire of a follower

    def closed(self, shard: int) -> None:
        """Note that the wire of a shard has ended, and so have all connections there, as seen from here."""
        raise NotImplementedError

    def begins(self, message: Message, user: str) -> None:
        """Note that a message of a device is about to be appended whose topic is at home here: it gets a queue. `user`:
        whose the device is, as the shard says where it was published (`user_of`)."""
        raise NotImplementedError

    # In every pass

    def may_have(self, message: Message) -> bool:
        """Return whether the topic of a message may have a queue, by the configuration."""
        raise NotImplementedError

    def hear_itself(self) -> None:
        """Hear what this shard has said to itself."""
        raise NotImplementedError

    def on_timer(self) -> None:
        """Answer what has waited too long for a home that is away."""
        raise NotImplementedError
