"""Writing: what Spark drives (`batch_writer`, `stream_writer`), and what both sides share: options, plain
data that Spark pickles, and the markers of exactly-once writes.

``worker/`` writes, ``driver/`` commits; neither imports the other.
"""
