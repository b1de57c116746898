"""Sockets: dialling, transport, frames, pipelined requests, and the connection to one broker."""
