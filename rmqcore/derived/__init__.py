"""What dispatch fills: all consume queues of a store, and its index.

Never decides when to dispatch, flush or delete.

Floor: F4.
"""
