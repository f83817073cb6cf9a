"""Memory and threads for native code: mapped regions, held buffers, a lock, published offsets.

Never knows a record, or any other byte of the format.

Floor: F0.
"""
