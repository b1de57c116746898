"""`KnownTopicId`: the id of a topic by the answers of several brokers, which may lag behind (KIP-516)."""

from __future__ import annotations

from uuid import UUID

LAG_S = 5.0
"""A broker does not lag behind for longer: an id that is given for this time is that of now."""


class KnownTopicId:
    """The id of the topic that has a name now. A new id counts at once. A former one does not, as a broker
    that lags behind may give it, until it alone was given for `LAG_S`: then the id that replaced it was that
    of such a broker. Brokers of old versions give none, which says nothing.
    """

    def __init__(self) -> None:
        self.current: UUID | None = None
        """None until a broker gives one."""
        self._former: set[UUID] = set()
        self._contradicted_since: float | None = None

    def learn(self, topic_id: UUID | None, now: float) -> bool:
        """A broker gives ``topic_id``, at ``now`` (seconds of a steady clock). False if it is that of another
        topic: what the broker says is not about the one that has the name now.
        """
        if topic_id is None:
            return True
        if topic_id in self._former:
            if self._contradicted_since is None:
                self._contradicted_since = now
            if now - self._contradicted_since < LAG_S:
                return False
        if self.current not in (None, topic_id):
            self._former.add(self.current)
        self._former.discard(topic_id)
        self.current, self._contradicted_since = topic_id, None
        return True
