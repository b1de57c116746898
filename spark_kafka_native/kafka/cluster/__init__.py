"""Cluster metadata, the connections to the brokers, and requests that find their leader, coordinator or
controller.
"""
