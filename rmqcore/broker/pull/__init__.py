"""Pulling: at once or when something arrives, and from the disk in another thread.

Never keeps what was handed out in mind; that is POP's.

Floor: F8.
"""
