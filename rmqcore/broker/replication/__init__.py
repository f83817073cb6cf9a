"""A broker among others: registration with name servers, and what a slave takes over.

The log itself is followed in ``rmqcore.ha``; never touched here.

Floor: F8.
"""
