"""Pulling: requests 11 and 361, pulls that are held until something arrives, cold reads.

Never keeps what was handed out in mind; that is POP's.

Floor: F8.
"""
