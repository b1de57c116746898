"""A Kafka client for columns: it fetches records into Arrow and numpy arrays and produces from them.

Never imports pyspark. What is not in ``__all__`` may change without notice.
"""
