"""The format byte for byte: layout, byte order, CRC, records, properties, hosts, messages.

Never opens a file, and never writes anything but the buffer it was given.

Floor: F0.
"""
