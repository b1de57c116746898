"""`KnownTopicId`: the id of a topic by the answers of several brokers, which may lag behind (KIP-516)."""

from __future__ import annotations

from uuid import UUID


class KnownTopicId:
    """The id of the topic that has a name now. It never goes back: a broker that lags behind may give a
    former one, and one of an old version none."""

    def __init__(self) -> None:
        self.current: UUID | None = None
        """None until a broker gives one."""
        self._former: set[UUID] = set()

    def is_replaced_by(self, topic_id: UUID | None) -> bool:
        """True if ``topic_id`` is that of another topic, created under the name since."""
        return self.current is not None and topic_id not in (None, self.current, *self._former)

    def is_former(self, topic_id: UUID | None) -> bool:
        """True if ``topic_id`` is that of a topic that another one has replaced."""
        return topic_id in self._former

    def learn(self, topic_id: UUID | None) -> None:
        """A broker gives ``topic_id``."""
        if self.current is None:
            self.current = topic_id
        elif self.is_replaced_by(topic_id):
            self._former.add(self.current)
            self.current = topic_id
