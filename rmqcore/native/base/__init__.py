"""What other native code stands on: mapped memory, held buffers, a lock, clocks and syncs.

Never knows a record, or any other byte of the format.

Floor: F0.
"""
