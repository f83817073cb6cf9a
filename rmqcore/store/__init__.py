"""The store as a user has it: `open_store`, puts and reads, for writing or read only.

Wires files, services and recovery together; never touches a record's bytes itself.

Floor: F6.
"""
