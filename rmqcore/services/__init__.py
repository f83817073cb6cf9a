"""Background work of a store, one service a file; every service stops the same way.

A service decides when something is done; the files know how. Never called by the user directly.

Floor: F4.
"""
