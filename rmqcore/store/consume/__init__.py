"""Consuming: which messages a group wants, who has them, and which it has done with.

Works on any store with reads and puts; never knows a network.

Floor: F5.
"""
