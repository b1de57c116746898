"""Deadlines, wake-ups, retries, throttled log lines: what needs a clock or a thread, and no broker."""
