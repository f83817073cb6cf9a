"""Memory and threads for native code: mapped regions, held buffers, turns, published offsets.

Never knows a record, or any other byte of the format.

Floor: F0.
"""
