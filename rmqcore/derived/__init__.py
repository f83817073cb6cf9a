"""What dispatch fills: all consume queues of a store, and all its index files.

Never decides when to dispatch, flush or delete.

Floor: F4.
"""
