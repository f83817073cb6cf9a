"""Background work of a store, one service a file; every service stops the same way.

A service decides when; what is done is the files' business. None faces the user.

Floor: F4.
"""
