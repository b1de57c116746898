"""Metrics, events and their exporters. Others report to them; they ask for nothing."""
