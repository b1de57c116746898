"""The data source ``pykafka``: between Spark's Python Data Source API and the client in ``kafka``.

What Spark pickles from here (readers, partitions, writers) is plain data: no socket, no lock, no open client.
"""
