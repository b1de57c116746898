"""An in-process broker for tests, which misbehaves as scripted. See `MockBroker`.

Its codec follows Kafka's own specification and shares nothing with ``kafka.protocol`` and ``kafka.records``,
so that a mistake of theirs shows.
"""
