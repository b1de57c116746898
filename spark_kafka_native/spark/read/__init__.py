"""Reading: what Spark drives (`batch_reader`, `stream_reader`), and the plain data that both sides share.

``driver/`` plans, ``worker/`` reads; neither imports the other.
"""
