"""Deadlines, waiting, short-lived threads, forks, retries, name lookups and throttled logging: code
that needs a clock or a thread, and no broker.
"""
