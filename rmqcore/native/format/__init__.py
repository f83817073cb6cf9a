"""The bytes of the format: layout, byte order, CRC, records, properties, tags, hosts, messages.

Never opens a file, and never writes anything but the buffer it was given.

Floor: F0.
"""
