"""Sending: puts, batches, retries, dead letters, replies, transactions.

Never answers before the store confirms what its flush and role ask for.

Floor: F8.
"""
